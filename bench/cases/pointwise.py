"""Kernels that compute with maps [N, H, W, C], gate and resize them, beside torch's own."""

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import Calls
from bench.cases.tensors import Shape, nchw, per_sample, poisoned, randn
from tvdnn.kernels.pointwise import arithmetic, resize, softmax
from tvdnn.kernels.pointwise import channel_broadcast as gate

DOUBLED = {"scales": (0.5, 0.5)}


def multiply(shape: Shape, kind: torch.dtype) -> Calls:
    x, y, out = randn(shape, kind), randn(shape, kind), poisoned(shape, kind)
    return per_sample(lambda: arithmetic.multiply(x, y, out), out, torch.mul, x, y)


def gated(shape: Shape, kind: torch.dtype) -> Calls:
    x, out = randn(shape, kind), poisoned(shape, kind)
    gates = randn((shape[0], shape[3]), kind)
    rows = (x.flatten(1, 2), gates, out.flatten(1, 2))
    return per_sample(lambda: gate.gate(*rows), out, torch.mul, x, gates[:, None, None])


def gate_grad(shape: Shape, kind: torch.dtype) -> Calls:
    """The gradients of the map and of its gates, of which the latter is compared."""
    x, dy, dx = randn(shape, kind), randn(shape, kind), poisoned(shape, kind)
    gates = randn((shape[0], shape[3]), kind)
    dgates = poisoned(gates.shape, kind)
    slices = gate.gate_slices(shape[1] * shape[2], shape[3])
    sums = torch.empty(shape[0], slices, shape[3])

    def own() -> None:
        maps = (x.flatten(1, 2), gates, dy.flatten(1, 2), dx.flatten(1, 2))
        gate.gate_grad(*maps, sums)
        gate.sum_slices(sums, dgates)

    def gradient(x: Tensor, gates: Tensor, dy: Tensor) -> Tensor:
        both = dy * gates[:, None, None], (dy * x).sum((1, 2))
        return both[1]

    return per_sample(own, dgates, gradient, x, gates, dy)


def softmaxed(shape: Shape, kind: torch.dtype) -> Calls:
    x, y = randn(shape, kind), poisoned(shape, kind)
    rows = (x.flatten(0, 2), y.flatten(0, 2))

    def shares(maps: Tensor) -> Tensor:
        return functional.softmax(maps, -1)

    return per_sample(lambda: softmax.softmax(*rows, function="softmax"), y, shares, x)


def doubled(shape: Shape, kind: torch.dtype, mode: str) -> Calls:
    x, y = randn(shape, kind), poisoned(_double(shape), kind)

    def larger(maps: Tensor) -> Tensor:
        return functional.interpolate(maps, scale_factor=2, mode=mode)

    return per_sample(lambda: resize.resize(x, y, mode=mode, **DOUBLED), nchw(y), larger, nchw(x))


def doubled_grad(shape: Shape, kind: torch.dtype, mode: str) -> Calls:
    dy, dx = randn(_double(shape), kind), poisoned(shape, kind)

    def gradient(upper: Tensor) -> Tensor:
        size = [len(upper), shape[3], *shape[1:3]]
        backward = getattr(torch.ops.aten, f"upsample_{mode}2d_backward")
        corners = (False,) if mode == "bilinear" else ()
        result: Tensor = backward(upper, upper.shape[2:], size, *corners)
        return result

    def own() -> None:
        resize.resize_grad(dy, dx, mode=mode, **DOUBLED)

    return per_sample(own, nchw(dx), gradient, nchw(dy))


def _double(shape: Shape) -> Shape:
    return (shape[0], 2 * shape[1], 2 * shape[2], shape[3])
