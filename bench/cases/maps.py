"""Elementwise kernels over feature maps [N, H, W, C] beside torch's own."""

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import Calls
from bench.cases.tensors import EXACT_SAMPLES, Shape, few, nchw, per_sample, poisoned, randn
from tvdnn.kernels.conv import grad_bias as conv_grad_bias
from tvdnn.kernels.copy import layout
from tvdnn.kernels.norm import local_response_norm as norm
from tvdnn.kernels.pointwise import activation
from tvdnn.kernels.pool import avg as pool_avg
from tvdnn.kernels.pool import max as pool_max
from tvdnn.kernels.pool import max_grad as pool_max_grad
from tvdnn.kernels.reduce import partials as reduce

LRN: Final = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0}


def relu(shape: Shape, kind: torch.dtype) -> Calls:
    x, y = randn(shape, kind), poisoned(shape, kind)
    return per_sample(lambda: activation.relu(x, y), y, torch.relu, x)


def relu_grad(shape: Shape, kind: torch.dtype) -> Calls:
    y, dy, dx = randn(shape, kind).relu_(), randn(shape, kind), poisoned(shape, kind)

    def gradient(upper: Tensor, output: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.threshold_backward(upper, output, 0)
        return result

    return per_sample(lambda: activation.relu_grad(y, dy, dx), dx, gradient, dy, y)


def windows(size: int) -> dict[str, tuple[int, int]]:
    return {"kernel": (size,) * 2, "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}


def pooled(shape: Shape, window: dict[str, tuple[int, int]]) -> Shape:
    out = (shape[1] - window["kernel"][0]) // 2 + 1
    return (shape[0], out, out, shape[3])


def pooling(shape: Shape, kind: torch.dtype, window: dict[str, Any]) -> Calls:
    x, y = randn(shape, kind), poisoned(pooled(shape, window), kind)

    def maxima(maps: Tensor) -> Tensor:
        return functional.max_pool2d(maps, *window.values())

    return per_sample(lambda: pool_max.max_pool2d(x, y, **window), nchw(y), maxima, nchw(x))


def pooling_grad(shape: Shape, kind: torch.dtype, window: dict[str, Any]) -> Calls:
    x, dx = randn(shape, kind), poisoned(shape, kind)
    dy = randn(pooled(shape, window), kind)
    own = partial(pool_max_grad.max_pool2d_grad, x, dy, dx, **window)
    return per_sample(own, nchw(dx), *_gradient(x, dy, window))


def _gradient(x: Tensor, dy: Tensor, window: dict[str, Any]) -> tuple[Any, Tensor, Tensor, Tensor]:
    """torch's gradient and its operands: dy, x and the indices that its forward pass left."""
    _, indices = functional.max_pool2d(nchw(x), *window.values(), return_indices=True)

    def gradient(upper: Tensor, maps: Tensor, found: Tensor) -> Tensor:
        settings = (*window.values(), False, found.long())
        result: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(upper, maps, *settings)
        return result

    return gradient, nchw(dy), nchw(x), indices


def pooling_codes(shape: Shape, kind: torch.dtype, window: dict[str, Any]) -> Calls:
    """torch leaves indices, 8 bytes an output."""
    x, y = randn(shape, kind), poisoned(pooled(shape, window), kind)
    codes = _codes(y, window)

    def maxima(maps: Tensor) -> Tensor:
        return functional.max_pool2d(maps, *window.values(), return_indices=True)[0]

    own = partial(pool_max.max_pool2d_codes, x, y, codes, **window)
    return per_sample(own, nchw(y), maxima, nchw(x))


def unpooling(shape: Shape, kind: torch.dtype, window: dict[str, Any]) -> Calls:
    """The same gradient from codes."""
    x, dx = randn(shape, kind), poisoned(shape, kind)
    y, dy = (randn(pooled(shape, window), kind) for _ in range(2))
    codes = _codes(y, window)
    pool_max.max_pool2d_codes(x, y, codes, **window)
    own = partial(pool_max_grad.max_unpool2d, dy, codes, dx, **window)
    return per_sample(own, nchw(dx), *_gradient(x, dy, window))


def _codes(y: Tensor, window: dict[str, Any]) -> Tensor:
    """Room for the places of maxima: 2 bits a channel for windows 2x2, else 4."""
    channels = 4 if window["kernel"] == (2, 2) else 2
    return torch.zeros(*y.shape[:3], y.shape[3] // channels, dtype=torch.uint8)


def adaptive(shape: Shape, kind: torch.dtype) -> Calls:
    x, y = randn(shape, kind), poisoned((shape[0], 7, 7, shape[3]), kind)

    def averages(maps: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(maps, 7)

    return per_sample(lambda: pool_avg.adaptive_avg_pool2d(x, y), nchw(y), averages, nchw(x))


def _normalized(maps: Tensor) -> Tensor:
    return functional.local_response_norm(maps, *LRN.values())


def lrn(shape: Shape, kind: torch.dtype) -> Calls:
    x, y = randn(shape, kind), poisoned(shape, kind)
    own = partial(norm.local_response_norm, x, y, **LRN)
    return per_sample(own, nchw(y), _normalized, nchw(x))


def lrn_grad(shape: Shape, kind: torch.dtype) -> Calls:
    """torch's time has its forward pass too: only autograd knows the gradient."""
    x, dy, dx = randn(shape, kind), randn(shape, kind), poisoned(shape, kind)

    def gradient(maps: Tensor, upper: Tensor) -> Tensor:
        leaf = maps.detach().requires_grad_()
        return torch.autograd.grad(_normalized(leaf), leaf, upper)[0]

    own = partial(norm.local_response_norm_grad, x, dy, dx, **LRN)
    return per_sample(own, nchw(dx), gradient, nchw(x), nchw(dy))


def sum_of_two(shape: Shape, kind: torch.dtype) -> Calls:
    a, b, out = randn(shape, kind), randn(shape, kind), poisoned(shape, kind)
    return per_sample(lambda: layout.add(a, b, out), out, torch.add, a, b)


def stage(shape: Shape, kind: torch.dtype) -> Calls:
    """The caller's float32 images, into maps."""
    x = randn(shape, torch.float32)
    y = poisoned((shape[0], *shape[2:], shape[1]), kind)

    def peer() -> Tensor:
        return x.to(kind, memory_format=torch.channels_last)

    def own() -> Tensor:
        layout.stage(x, y)
        return nchw(y)

    return Calls(own, peer, lambda: x[:EXACT_SAMPLES].double(), few)


def bias_grad(shape: Shape, kind: torch.dtype) -> Calls:
    """The sums over cells and over the partials are part of the work."""
    dy = randn(shape, kind)
    samples, height, width, channels = shape
    plan = conv_grad_bias.grad_bias_plan((height, width), channels)
    partials = torch.full((plan.splits, channels), torch.nan)
    cells = torch.full((samples, height // plan.cell, width // plan.cell, channels), torch.nan)
    sums = torch.full((channels,), torch.nan)

    def own() -> Tensor:
        if plan.cell > 1:
            conv_grad_bias.sum_cells(dy, cells)
        added = cells if plan.cell > 1 else dy
        conv_grad_bias.conv2d_grad_bias(added, partials, first=True, cell=plan.cell)
        reduce.sum_partials(partials, sums, first=True)
        return sums

    rows = dy.view(-1, channels)
    return Calls(own, lambda: rows.sum(0), lambda: rows.sum(0, dtype=torch.float64))
