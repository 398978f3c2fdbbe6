"""Modules that the tracer follows, and why it refuses others."""

from collections.abc import Iterator

import torch
from torch.nn.modules import module as modules

from .. import nn
from ..ops import registry

LAYERS: tuple[type[torch.nn.Module], ...] = (
    *(getattr(torch.nn, name, None) or getattr(nn, name) for name in registry.LAYERS),
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


def is_plain_layer(module: torch.nn.Module) -> bool:
    """Whether a module runs no code but torch's and tvdnn's, which draws on no host."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    return type(module).__module__.startswith(LAYER_PACKAGES) and not hooked
