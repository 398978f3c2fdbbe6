"""Modules that the tracer follows, and why it refuses others."""

from collections.abc import Iterator

import torch
from torch.nn.modules import module as modules

from ..nn.dropout import StochasticDepth

LAYERS = (
    torch.nn.Conv2d,
    torch.nn.Conv1d,
    torch.nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d,
    torch.nn.MaxPool1d,
    torch.nn.AvgPool1d,
    torch.nn.AdaptiveAvgPool1d,
    torch.nn.AdaptiveMaxPool1d,
    torch.nn.AdaptiveMaxPool2d,
    torch.nn.LPPool1d,
    torch.nn.LPPool2d,
    torch.nn.Linear,
    torch.nn.ReLU,
    torch.nn.LeakyReLU,
    torch.nn.ReLU6,
    torch.nn.ELU,
    torch.nn.SiLU,
    torch.nn.GELU,
    torch.nn.Sigmoid,
    torch.nn.Tanh,
    torch.nn.Hardswish,
    torch.nn.Hardsigmoid,
    torch.nn.PReLU,
    torch.nn.Mish,
    torch.nn.Softplus,
    torch.nn.CELU,
    torch.nn.SELU,
    torch.nn.LogSigmoid,
    torch.nn.Softsign,
    torch.nn.Hardtanh,
    torch.nn.Threshold,
    torch.nn.GLU,
    torch.nn.Softmax,
    torch.nn.Softmax2d,
    torch.nn.LogSoftmax,
    torch.nn.MaxPool2d,
    torch.nn.AvgPool2d,
    torch.nn.AdaptiveAvgPool2d,
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.LazyBatchNorm1d,
    torch.nn.LazyBatchNorm2d,
    torch.nn.Upsample,
    torch.nn.UpsamplingNearest2d,
    torch.nn.UpsamplingBilinear2d,
    torch.nn.ChannelShuffle,
    torch.nn.Dropout,
    torch.nn.Dropout2d,
    StochasticDepth,
    torch.nn.LocalResponseNorm,
    torch.nn.LayerNorm,
    torch.nn.GroupNorm,
    torch.nn.InstanceNorm1d,
    torch.nn.InstanceNorm2d,
    torch.nn.Flatten,
    torch.nn.Unflatten,
    torch.nn.PixelShuffle,
    torch.nn.PixelUnshuffle,
    torch.nn.ZeroPad1d,
    torch.nn.ZeroPad2d,
    torch.nn.ConstantPad1d,
    torch.nn.ConstantPad2d,
    torch.nn.ReflectionPad1d,
    torch.nn.ReflectionPad2d,
    torch.nn.ReplicationPad1d,
    torch.nn.ReplicationPad2d,
    torch.nn.CircularPad1d,
    torch.nn.CircularPad2d,
    torch.nn.Identity,
    torch.nn.Sequential,
)
BRANCH_DROPPERS = (
    "torchvision.ops.stochastic_depth.StochasticDepth",
    "timm.layers.drop.DropPath",
)
LAYER_PACKAGES = ("torch.nn.", "tvdnn.nn.")
HOOKS_ON_ALL = "hooks on all modules, as of register_module_forward_hook (remove them)"


def module_refusal(module: torch.nn.Module) -> str | None:
    """Why a module cannot be traced; None where it can."""
    kind = type(module).__name__
    if kind == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
        return f"{kind} that torch.compile has compiled (give the module that was compiled)"
    if module._backward_hooks or module._backward_pre_hooks:
        return f"{kind} with backward hooks, which would not run (remove them)"
    if type(module).__module__.startswith(LAYER_PACKAGES) and not isinstance(module, LAYERS):
        return kind
    return None


def has_hooks_on_all_modules() -> bool:
    return bool(modules._has_any_global_hook())


def refused_at_once(net: torch.nn.Module) -> Iterator[str]:
    """Why a network cannot be traced at all, by submodule."""
    if has_hooks_on_all_modules():
        yield HOOKS_ON_ALL
    for path, module in net.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = path or type(net).__name__
            kind = type(module).__name__
            yield f"{where}: {kind}, a module of TorchScript (give the module itself)"
