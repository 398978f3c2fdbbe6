"""Gradients and losses of a network in several types, and their errors against float64."""

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.generated.tf32 import Tf32Product

Gradients = Mapping[str, Tensor]
Taken = dict[str, Tensor]  # of ReLUs, which elements passed; of max pooling, which were largest


def torch_layers(net: nn.Module) -> nn.Module:
    """A copy with every tvdnn layer as its torch namesake."""
    twin = copy.deepcopy(net)
    for module in twin.modules():
        if type(module).__module__.startswith("tvdnn.nn"):
            module.__class__ = getattr(torch.nn, type(module).__name__)
    return twin


def eager(net: nn.Module, kind: torch.dtype) -> nn.Module:
    """A copy of this type that torch runs, layer by layer, with maps in channels_last."""
    return torch_layers(net).to(dtype=kind, memory_format=torch.channels_last)


def gradients(net: nn.Module, x: Tensor, y: Tensor) -> Gradients:
    """Gradients of the parameters in float64, by their names in the network itself."""
    net.zero_grad(set_to_none=True)
    functional.cross_entropy(net(x).to(x.dtype), y).backward()
    return {
        name.removeprefix("module."): param.grad.detach().double()
        for name, param in net.named_parameters()
        if param.grad is not None
    }


@contextmanager
def torchs_precision(dtype: str) -> Iterator[None]:
    """torch's switches as a type of ours asks: float32 products in TF32, or exact."""
    switches = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def eager_tf32(net: nn.Module) -> nn.Module:
    """A float32 copy that torch runs on the CPU as on tensor cores, products by products of TF32.

    Depthwise convolutions, which take none, stay exact.
    """
    twin = torch_layers(net)
    for module in twin.modules():
        if type(module) is nn.Linear or (type(module) is nn.Conv2d and module.groups == 1):
            module.forward = functools.partial(_product_forward, module)
    return twin


def _product_forward(module: nn.Conv2d | nn.Linear, x: Tensor) -> Tensor:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        if isinstance(module, nn.Linear):
            return functional.linear(x, weight)
        sizes = (module.stride, module.padding, module.dilation)
        return functional.conv2d(x, weight, None, *sizes)

    y: Tensor = Tf32Product.apply(x, module.weight, product)
    if module.bias is None:
        return y
    return y + (module.bias if isinstance(module, nn.Linear) else module.bias[:, None, None])


@contextmanager
def recorded(net: nn.Module) -> Iterator[Taken]:
    """What the network's ReLUs and max pooling layers take of the maps that run through."""
    taken: Taken = {}

    def record(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.ReLU):
            taken[name] = output > 0
        else:
            maps = inputs[0].detach()
            maps = maps.float() if maps.dtype == torch.bfloat16 else maps
            taken[name] = functional.max_pool2d(maps, 2, return_indices=True)[1]

    def hook(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        return module.register_forward_hook(lambda *seen: record(name, *seen))

    kinds = (nn.ReLU, nn.MaxPool2d)
    hooks = [hook(name, layer) for name, layer in net.named_modules() if isinstance(layer, kinds)]
    yield taken
    for handle in hooks:
        handle.remove()


class _Passed(nn.Module):
    """A ReLU that passes given elements."""

    def __init__(self, passed: Tensor) -> None:
        super().__init__()
        self.passed = passed

    def forward(self, x: Tensor) -> Tensor:
        return x * self.passed


class _Gathered(nn.Module):
    """Max pooling that takes given elements."""

    def __init__(self, indices: Tensor) -> None:
        super().__init__()
        self.indices = indices

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).gather(2, self.indices.flatten(2)).view(self.indices.shape)


def taking(net: nn.Module, taken: Taken) -> nn.Module:
    """A copy that takes of its maps what another run took: the same piece of the network."""
    twin = copy.deepcopy(net)
    for name, chosen in taken.items():
        parent, _, leaf = name.rpartition(".")
        piece = _Passed(chosen) if chosen.dtype == torch.bool else _Gathered(chosen)
        setattr(twin.get_submodule(parent), leaf, piece)
    return twin


def pooled_rms(errors: Sequence[float]) -> float:
    """Root of the mean of squared relative errors."""
    return float((sum(error**2 for error in errors) / len(errors)) ** 0.5)


def relative_errors(got: Gradients, exact: Gradients) -> dict[str, float]:
    """Relative RMS of each gradient."""
    return {name: float((got[name] - exact[name]).norm() / exact[name].norm()) for name in exact}
