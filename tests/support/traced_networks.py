"""Runs the ops of traced networks by torch, and compares networks with their modules."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.support.exact import Functional
from tvdnn.graph import Network, Op

Maps = dict[str, Tensor]


def run(network: Network, module: torch.nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The network's outputs by torch's own functions, op by op over channels-last values."""
    params = {"": None, **dict(module.named_parameters()), **dict(module.named_buffers())}
    values = dict(zip(network.inputs, map(stored, inputs), strict=True))
    for op in network.ops:
        sources = [values[name] for name in op.inputs]
        y = run_op(op, sources[0], [params[name] for name in op.params], network)
        assert y.shape == network.values[op.output].shape, op
        values[op.output] = y
    return [values[name] for name in network.outputs]


def run_op(op: Op, x: Tensor, params: list[Any], network: Network) -> Tensor:
    """One op; the output's shape decides ceil mode and the adaptive side."""
    shape, attrs = network.values[op.output].shape, dict(op.attrs)
    if op.kind == "view":
        return x.reshape(shape)
    if op.kind == "flatten":
        return torch_layout(x).flatten(1)
    if op.kind == "relu":
        return x.clamp(min=0)
    if op.kind == "affine":
        return x * attrs["scale"] + attrs["shift"]
    if op.kind == "layer_norm":
        return functional.layer_norm(x, x.shape[-1:], *params, **attrs)
    if op.kind == "group_norm":
        y = torch_layout(x) if x.dim() == 4 else x
        return stored(functional.group_norm(y, attrs["groups"], *params, attrs["eps"]))
    if op.kind == "scale_channels":
        return x * params[0].flatten()
    if op.kind == "linear":
        return functional.linear(x, *params)
    y = torch_layout(x)
    if op.kind == "batch_norm":
        weight, bias, mean, variance, count = params
        assert count is None
        return stored(functional.batch_norm(y, mean, variance, weight, bias, **attrs))
    if op.kind.startswith("conv2d"):
        weight = params[0] if params[0].dim() == 4 else params[0][:, :, None, None]
        assert attrs.pop("kernel") == tuple(weight.shape[2:])
        return stored(functional.conv2d(y, weight, params[1], **attrs))
    if op.kind == "conv_transpose2d":
        steps, padding = attrs["stride"], attrs["padding"]
        least = functional.conv_transpose2d(
            y, *params, steps, padding, 0, attrs["groups"], attrs["dilation"]
        )
        more = (shape[1] - least.shape[2], shape[2] - least.shape[3])
        return stored(
            functional.conv_transpose2d(
                y, *params, steps, padding, more, attrs["groups"], attrs["dilation"]
            )
        )
    if op.kind == "adaptive_avg_pool2d":
        return stored(functional.adaptive_avg_pool2d(y, shape[1:3]))
    if op.kind in ("max_pool2d", "avg_pool2d"):
        pool, kernel = getattr(functional, op.kind), attrs.pop("kernel")
        results = [stored(pool(y, kernel, ceil_mode=ceil, **attrs)) for ceil in (False, True)]
        return next(result for result in results if result.shape == shape)
    return stored(getattr(functional, op.kind)(y, **attrs))


def stored(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous() if x.dim() == 4 else x


def torch_layout(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2).contiguous()


def kinds(network: Network) -> list[str]:
    return [op.kind for op in network.ops]


class Twice(torch.nn.Module):
    """A layer that runs twice, and two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.unused = torch.nn.Linear(4, 4)

    def forward(self, x: Tensor) -> list[Tensor]:
        self.unused(x)
        y = self.first(self.second(self.first(x)))
        return [y, y, x]


class Inputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, image: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        return (image.relu(), *(self.fc(other) for other in others))


class Stale(torch.nn.Module):
    """Returns `way` of a convolution's map."""

    def __init__(self, way: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 1)
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.way(self.conv(x))


def returning(way: Callable[[Tensor], Any]) -> torch.nn.Module:
    """Returns `way` of its input, and has a parameter."""
    return Functional(lambda _, x: way(x), weight=torch.randn(2, 4))
