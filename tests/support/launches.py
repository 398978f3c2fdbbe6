"""One launch of every kernel launcher, on random operands of any size."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import getmembers, isfunction
from math import prod
from typing import Any

import torch
from torch import Tensor

from tests.kernels.numerics import poisoned, randn
from tvdnn.kernels.codec.sign_bits import packed_signs_reference
from tvdnn.kernels.conv import batch_stats as conv_moments
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv import depthwise as conv_depthwise
from tvdnn.kernels.conv import grad_bias as conv_grad_bias
from tvdnn.kernels.conv import grad_input_add_mask as conv_grad_last
from tvdnn.kernels.conv import pack_weight as conv_pack
from tvdnn.kernels.conv.grad_weight import launch as conv_grad_weight
from tvdnn.kernels.copy import channels as concat
from tvdnn.kernels.copy import host as transfer
from tvdnn.kernels.copy import labels, layout, remap, strided
from tvdnn.kernels.copy import semaphore as counts
from tvdnn.kernels.language.channel_chunks import num_chunks
from tvdnn.kernels.linear import fused_update as linear_update
from tvdnn.kernels.linear import passes as linear
from tvdnn.kernels.loss import cross_entropy as loss
from tvdnn.kernels.loss import cross_entropy_grad as loss_grad
from tvdnn.kernels.loss import per_element as loss_elements
from tvdnn.kernels.norm import batch_norm, batch_norm_grad, group_norm, layer_norm
from tvdnn.kernels.norm import local_response_norm as norm
from tvdnn.kernels.norm.batch_norm_tiles import BatchNormPlan, batch_norm_plan
from tvdnn.kernels.optim import from_partials as optim_partials
from tvdnn.kernels.optim import update as optim
from tvdnn.kernels.pointwise import (
    activation,
    arithmetic,
    broadcast,
    channel_scale,
    dropout,
    prelu,
    resize,
    softmax,
    unary,
)
from tvdnn.kernels.pointwise import channel_broadcast as gate
from tvdnn.kernels.pointwise import dropout_blocks as dropout_parts
from tvdnn.kernels.pool import avg as pool_avg
from tvdnn.kernels.pool import max as pool_max
from tvdnn.kernels.pool import max_grad as pool_max_grad
from tvdnn.kernels.reduce import axes as reduce_axes
from tvdnn.kernels.reduce import partials as reduce
from tvdnn.kernels.reduce import per_sample as sample_sums
from tvdnn.runtime.kernel_set import KERNEL_MODULES

REFERENCE = "_reference"
BF16, F32 = torch.bfloat16, torch.float32
CELL = 4  # rows and columns that are summed, a divisor of every side


@dataclass(frozen=True, slots=True)
class Size:
    """Samples, rows and columns, and channels of the maps that are launched on."""

    samples: int
    side: int
    channels: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch, which may be repeated, and all that it writes."""

    run: Callable[[], None]
    outputs: tuple[Tensor, ...]


class Operands:
    """Fresh tensors on the generator's device."""

    def __init__(self, size: Size, generator: torch.Generator) -> None:
        self.size, self.generator, self.device = size, generator, generator.device

    def maps(self, dtype: torch.dtype = BF16, *, channels: int = 0, by: int = 1) -> Tensor:
        """Random [N, H, W, C], the sides divided by `by`."""
        side = self.size.side // by
        shape = (self.size.samples, side, side, channels or self.size.channels)
        return randn(shape, dtype, self.generator)

    def random(self, *shape: int, dtype: torch.dtype = F32) -> Tensor:
        return randn(shape, dtype, self.generator)

    def empty(self, *shape: int, dtype: torch.dtype = F32) -> Tensor:
        return poisoned(shape, dtype, self.device)

    def like(self, tensor: Tensor) -> Tensor:
        return poisoned(tensor.shape, tensor.dtype, self.device)

    def bytes(self, *shape: int) -> Tensor:
        options = {"generator": self.generator, "device": self.device}
        return torch.randint(256, shape, dtype=torch.uint8, **options)

    def classes(self, count: int) -> Tensor:
        shape = (self.size.samples,)
        return torch.randint(count, shape, generator=self.generator, device=self.device)


Make = Callable[[Operands], Launch]


def launchers() -> set[str]:
    """Names of all functions of the kernel modules that have a reference."""
    named = {name for module in KERNEL_MODULES for name, _ in getmembers(module, isfunction)}
    return {name for name in named if name + REFERENCE in named}


def launcher_of(name: str) -> str:
    """The launcher of an entry of LAUNCHES; what follows a comma tells its entries apart."""
    return name.split(",")[0]


# Convolution


def _settings(stride: int, padding: int, precision: str) -> dict[str, Any]:
    geometry = {"stride": (stride,) * 2, "padding": (padding,) * 2, "dilation": (1, 1)}
    return geometry | {"groups": 1, "precision": precision}


def _convolution(
    o: Operands, direction: str, dtype: torch.dtype, precision: str = "tf32",
    channels: int = 0, stride: int = 1, taps: int = 3,
) -> Launch:  # fmt: skip
    """`channels`: of the input, by default those of the size."""
    settings = _settings(stride, taps // 2, precision)
    x = o.maps(dtype, channels=channels)
    dy = o.maps(dtype, by=stride)
    c, k = x.shape[3], dy.shape[3]
    if direction == "forward":
        y, packed, bias = o.like(dy), o.random(k, taps, taps, c, dtype=dtype), o.random(k)
        left, moments = _moments_of_cells(o, x, y, taps, settings)
        launch = partial(conv.conv2d, **settings, **left)
        return Launch(lambda: launch(x, packed, bias, y), (y, *moments))
    if direction == "max_pool":
        y = o.like(o.maps(dtype, by=2))
        packed, bias = o.random(k, taps, taps, c, dtype=dtype), o.random(k)
        codes = o.empty(*y.shape[:3], k // 4, dtype=torch.uint8)
        launch = partial(conv.conv2d_max_pool, **settings)
        return Launch(lambda: launch(x, packed, bias, y, codes), (y, codes))
    if direction == "grad_input":
        dx, mask, sums = o.like(x), o.maps(dtype, channels=c), _sums_of_cells(o, x)
        packed = o.random(c, taps, taps, k, dtype=dtype)
        launch = partial(conv.conv2d_grad_input, mask=mask, sums=sums, **settings)
        return Launch(lambda: launch(dy, packed, dx), (dx, sums))
    plan = _plan(x, dy, taps, settings)
    sums = o.empty(plan.splits, k, taps, taps, c)
    own = partial(conv_grad_weight.conv2d_grad_weight, first=True, **settings)
    return Launch(lambda: own(x, dy, sums), (sums,))


def _moments_of_cells(
    o: Operands, x: Tensor, y: Tensor, taps: int, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Tensor]]:
    """What a forward convolution that leaves moments is told of them, and their place."""
    shape = (y.shape[3], x.shape[3], taps, taps)
    sides = [(maps.shape[1], maps.shape[2]) for maps in (x, y)]
    cells = conv_moments.moment_cells(*sides, shape, **settings, dtype=x.dtype)
    if cells is None:
        return {}, []
    moments = o.empty(*cells.shape(*y.shape[::3])).zero_()
    return {"moments": moments, "cells": cells}, [moments]


def _last_term(o: Operands) -> Launch:
    added = o.maps(channels=128)
    dy, packed, dx = o.maps(channels=64), o.random(128, 1, 1, 64, dtype=BF16), o.like(added)
    operands = (dy, packed, added, packed_signs_reference(o.maps(channels=128)))
    return Launch(lambda: conv_grad_last.conv2d_grad_last(*operands, dx), (dx,))


def _cells(o: Operands) -> tuple[conv_moments.MomentCells, tuple[int, ...]]:
    """Runs of pixels, and the shape of the moments of the maps'."""
    samples, height, width, channels = o.maps().shape
    cells = conv_moments.MomentCells((height, width), (1, 1, 128), flat=True)
    return cells, cells.shape(samples, channels)


def _cell_moments(o: Operands) -> Launch:
    maps, (cells, shape) = o.maps(), _cells(o)
    moments = o.empty(*shape).zero_()
    return Launch(lambda: conv_moments.cell_moments(maps, moments, cells=cells), (moments,))


def _merge_cells(o: Operands) -> Launch:
    cells, shape = _cells(o)
    moments, partials = o.random(*shape).abs(), o.empty(shape[0], 1, *shape[2:])
    run = partial(conv_moments.merge_cells, samples=o.size.samples, cells=cells)
    return Launch(lambda: run(moments, partials), (partials,))


def _plan(
    x: Tensor, dy: Tensor, taps: int, settings: dict[str, Any]
) -> conv_grad_weight.GradWeightPlan:
    shape = (dy.shape[3], x.shape[3], taps, taps)
    sides = (x.shape[1], x.shape[2]), (dy.shape[1], dy.shape[2])
    return conv_grad_weight.grad_weight_plan(*sides, shape, **settings, dtype=x.dtype)


def _convolutions() -> Iterator[tuple[str, Make]]:
    names = {
        "forward": "conv2d",
        "grad_input": "conv2d_grad_input",
        "grad_weight": "conv2d_grad_weight",
    }
    kinds: dict[str, dict[str, Any]] = {
        "bf16": {"dtype": BF16},
        "tf32": {"dtype": F32},
        "fp32": {"dtype": F32, "precision": "ieee"},
        "stride 2": {"dtype": BF16, "stride": 2},
        "1x1": {"dtype": BF16, "taps": 1},
        "few channels": {"dtype": BF16, "channels": 3},
        "few channels, tf32": {"dtype": F32, "channels": 3},
    }
    pooled = {"direction": "max_pool", "dtype": BF16}
    yield "conv2d_max_pool, bf16", partial(_convolution, **pooled)
    yield "conv2d_max_pool, few channels", partial(_convolution, **pooled, channels=3)
    for direction, name in names.items():
        for kind, settings in kinds.items():
            yield f"{name}, {kind}", partial(_convolution, direction=direction, **settings)


def _depthwise(o: Operands, direction: str, taps: int, stride: int = 1) -> Launch:
    pair, around = (stride, stride), (taps // 2, taps // 2)
    settings = {"stride": pair, "padding": around, "dilation": (1, 1)}
    x, dy = o.maps(), o.maps(by=stride)
    channels = o.size.channels
    packed = o.random(taps, taps, channels, dtype=BF16)
    if direction == "forward":
        y, bias = o.like(dy), o.random(channels)
        run = partial(conv_depthwise.depthwise_conv2d, precision="ieee", **settings)
        return Launch(lambda: run(x, packed, bias, y), (y,))
    if direction == "grad_input":
        dx = o.like(x)
        run = partial(conv_depthwise.depthwise_conv2d_grad_input, precision="ieee", **settings)
        return Launch(lambda: run(dy, packed, dx), (dx,))
    plan = conv_depthwise.depthwise_plan((dy.shape[1], dy.shape[2]), channels, (taps, taps))
    sums = o.empty(plan.splits, channels, taps, taps, 1)
    run = partial(conv_depthwise.depthwise_conv2d_grad_weight, first=True, **settings)
    return Launch(lambda: run(x, dy, sums), (sums,))


def _depthwises() -> Iterator[tuple[str, Make]]:
    names = {
        "forward": "depthwise_conv2d",
        "grad_input": "depthwise_conv2d_grad_input",
        "grad_weight": "depthwise_conv2d_grad_weight",
    }
    for direction, name in names.items():
        yield f"{name}, 5x5", partial(_depthwise, direction=direction, taps=5)
        yield f"{name}, 3x3 by 2", partial(_depthwise, direction=direction, taps=3, stride=2)


def _sums_of_cells(o: Operands, maps: Tensor) -> Tensor:
    side = maps.shape[1] // CELL
    return o.empty(maps.shape[0], side, side, maps.shape[3])


def _sum_cells(o: Operands) -> Launch:
    maps = o.maps()
    sums = _sums_of_cells(o, maps)
    return Launch(lambda: conv_grad_bias.sum_cells(maps, sums), (sums,))


def _grad_bias(o: Operands, cell: int) -> Launch:
    dy = o.maps() if cell == 1 else _sums_of_cells(o, o.maps()).normal_(generator=o.generator)
    plan = conv_grad_bias.grad_bias_plan((o.size.side, o.size.side), o.size.channels)
    partials = o.empty(plan.splits, dy.shape[3])
    launch = partial(conv_grad_bias.conv2d_grad_bias, first=True, cell=cell)
    return Launch(lambda: launch(dy, partials), (partials,))


def _pack(o: Operands) -> Launch:
    weight = o.random(o.size.channels, 32, 3, 3)
    packed = o.empty(o.size.channels, 3, 3, 32, dtype=BF16)
    return Launch(lambda: conv_pack.pack_weight(weight, packed, groups=1), (packed,))


def _pack_grad_input(o: Operands) -> Launch:
    weight = o.random(o.size.channels, 32, 3, 3)
    packed = o.empty(32, 3, 3, o.size.channels, dtype=BF16)
    return Launch(lambda: conv_pack.pack_weight_grad_input(weight, packed, groups=1), (packed,))


# Products


def _product(
    o: Operands, direction: str, dtype: torch.dtype = BF16, precision: str = "tf32"
) -> Launch:
    inputs, outputs = 4 * o.size.channels, o.size.channels
    x = o.random(o.size.samples, inputs, dtype=dtype)
    dy = o.random(o.size.samples, outputs, dtype=dtype)
    weight = o.random(outputs, inputs, dtype=dtype)
    if direction == "forward":
        y, bias = o.like(dy), o.random(outputs)
        return Launch(lambda: linear.linear(x, weight, bias, y, precision=precision), (y,))
    if direction == "grad_input":
        dx = o.like(x)
        own = linear.linear_grad_input
        return Launch(lambda: own(dy, weight, dx, precision=precision), (dx,))
    grad, group = o.empty(outputs, inputs), o.size.samples
    run = partial(linear.linear_grad_weight, group=group, precision=precision)
    return Launch(lambda: run(x, dy, grad), (grad,))


def _products() -> Iterator[tuple[str, Make]]:
    names = {
        "forward": "linear",
        "grad_input": "linear_grad_input",
        "grad_weight": "linear_grad_weight",
    }
    for direction, name in names.items():
        yield f"{name}, bf16", partial(_product, direction=direction)
        yield f"{name}, tf32", partial(_product, direction=direction, dtype=F32)
        exact = {"dtype": F32, "precision": "ieee"}
        yield f"{name}, fp32", partial(_product, direction=direction, **exact)


def _linear_grad_bias(o: Operands) -> Launch:
    dy, partials = o.random(o.size.samples, o.size.channels), o.empty(1, o.size.channels)
    run = partial(linear.linear_grad_bias, group=o.size.samples)
    return Launch(lambda: run(dy, partials), (partials,))


# Maps


def _relu(o: Operands) -> Launch:
    x = o.maps()
    y = o.like(x)
    return Launch(lambda: activation.relu(x, y), (y,))


def _relu_grad(o: Operands) -> Launch:
    y, dy = o.maps(), o.maps()
    dx = o.like(y)
    return Launch(lambda: activation.relu_grad(y, dy, dx), (dx,))


def _activate(o: Operands, function: str) -> Launch:
    x = o.maps()
    y = o.like(x)
    run = partial(activation.activate, function=function, coefficient=0.1)
    return Launch(lambda: run(x, y), (y,))


def _activate_grad(o: Operands, function: str) -> Launch:
    values, dy = o.maps(), o.maps()
    dx = o.like(dy)
    run = partial(activation.activate_grad, function=function, coefficient=0.1)
    return Launch(lambda: run(values, dy, dx), (dx,))


def _activations() -> Iterator[tuple[str, Make]]:
    for function in activation.FUNCTIONS:
        yield f"activate, {function}", partial(_activate, function=function)
        yield f"activate_grad, {function}", partial(_activate_grad, function=function)


def _unary(o: Operands, function: str) -> Launch:
    x = o.maps().abs()
    y = o.like(x)
    return Launch(lambda: unary.unary(x, y, function=function, a=0.5, b=2.0), (y,))


def _unary_grad(o: Operands, function: str) -> Launch:
    x, dy = o.maps().abs(), o.maps()
    dx = o.like(dy)
    return Launch(lambda: unary.unary_grad(x, dy, dx, function=function, a=0.5, b=2.0), (dx,))


def _unaries() -> Iterator[tuple[str, Make]]:
    for function in unary.FUNCTIONS:
        yield f"unary, {function}", partial(_unary, function=function)
        yield f"unary_grad, {function}", partial(_unary_grad, function=function)


def _prelu(o: Operands) -> Launch:
    x, slopes = o.maps().flatten(1, 2), o.random(o.size.channels)
    y = o.like(x)
    return Launch(lambda: prelu.prelu(x, slopes, y), (y,))


def _prelu_grad(o: Operands, slopes: int) -> Launch:
    x, dy = (o.maps().flatten(1, 2) for _ in range(2))
    slope, dx = o.random(slopes or o.size.channels), o.like(x)
    terms = prelu.prelu_terms(x.shape[1], x.shape[2], slope.numel())
    sums = o.empty(x.shape[0], terms, 1, slope.numel())
    return Launch(lambda: prelu.prelu_grad(x, dy, slope, dx, sums), (dx, sums))


def _dropout(o: Operands) -> Launch:
    x, seed = o.maps(), torch.ones(1, dtype=torch.int64, device=o.device)
    y = o.like(x)
    run = partial(dropout.dropout, p=0.5, op_id=1, first_sample=2)
    return Launch(lambda: run(x, y, seed), (y,))


LRN = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0}


def _lrn(o: Operands) -> Launch:
    x = o.maps()
    y = o.like(x)
    return Launch(lambda: norm.local_response_norm(x, y, **LRN), (y,))


def _lrn_grad(o: Operands) -> Launch:
    x, dy = o.maps(), o.maps()
    dx = o.like(x)
    return Launch(lambda: norm.local_response_norm_grad(x, dy, dx, **LRN), (dx,))


def _layer_norm(o: Operands) -> Launch:
    x, weight, bias = o.maps(), o.random(o.size.channels), o.random(o.size.channels)
    y = o.like(x)
    return Launch(lambda: layer_norm.layer_norm(x, weight, bias, y, eps=1e-6), (y,))


def _layer_norm_grad(o: Operands) -> Launch:
    x, dy, weight = o.maps(), o.maps(), o.random(o.size.channels)
    chunks = layer_norm.layer_norm_chunks(o.size.side**2, o.size.channels)
    dx, sums = o.like(x), o.empty(o.size.samples, chunks, 2, o.size.channels)
    run = partial(layer_norm.layer_norm_grad, eps=1e-6)
    return Launch(lambda: run(x, dy, weight, dx, sums), (dx, sums))


def _group_norm(o: Operands, backward: bool) -> Launch:
    x, dy = (o.maps().flatten(1, 2) for _ in range(2))
    weight, bias = o.random(o.size.channels), o.random(o.size.channels)
    samples, pixels, channels = x.shape
    sums = (samples, num_chunks(pixels, channels), 2, channels)
    partials, slopes = o.empty(*sums), o.empty(samples, 8, 2)
    if not backward:
        y, moments = o.like(x), o.empty(samples, 8, 2)
        run = partial(group_norm.group_norm, groups=8, eps=1e-6)
        return Launch(lambda: run(x, weight, bias, y, moments, partials), (y, moments, partials))
    dx, moments = o.like(x), o.random(samples, 8, 2)
    run = partial(group_norm.group_norm_grad, groups=8)
    operands = (x, dy, weight, moments, dx, partials, slopes)
    return Launch(lambda: run(*operands), operands[4:])


def _scale_channels(o: Operands) -> Launch:
    x, scale = o.maps().flatten(1, 2), o.random(o.size.channels)
    y = o.like(x)
    return Launch(lambda: channel_scale.scale_channels(x, scale, y), (y,))


def _scale_channels_grad(o: Operands) -> Launch:
    x, dy = (o.maps().flatten(1, 2) for _ in range(2))
    scale, dx = o.random(o.size.channels), o.like(x)
    sums = o.empty(x.shape[0], num_chunks(*x.shape[1:]), 1, x.shape[2])
    run = channel_scale.scale_channels_grad
    return Launch(lambda: run(x, dy, scale, dx, sums), (dx, sums))


def _add_sample_sums(o: Operands) -> Launch:
    sums, running = o.random(o.size.samples, 20, 2, o.size.channels), o.empty(16, o.size.channels)
    run = partial(sample_sums.add_sample_sums, kind=1, first=True)
    return Launch(lambda: run(sums, running), (running,))


def _slices(o: Operands) -> tuple[BatchNormPlan, tuple[int, ...]]:
    """How batch normalization cuts the maps, and the shape of the sums of all slices."""
    plan = batch_norm_plan(o.maps().shape)
    return plan, plan.partials_shape(o.size.samples, o.size.channels)


def _moments(o: Operands) -> Launch:
    x, (plan, shape) = o.maps(), _slices(o)
    partials = o.empty(*shape)
    run = partial(batch_norm.batch_norm_moments, group=plan.group)
    return Launch(lambda: run(x, partials), (partials,))


def _statistics(o: Operands) -> Launch:
    plan, shape = _slices(o)
    partials, statistics = o.random(*shape).abs(), o.empty(3, o.size.channels)
    running = [o.empty(o.size.channels) for _ in range(2)]
    count = torch.zeros(1, dtype=torch.int64, device=o.device)
    settings = {"shape": o.maps().shape, "group": plan.group, "momentum": None, "eps": 1e-5}

    def run() -> None:
        for tensor in (*running, count):
            tensor.fill_(1)
        batch_norm.batch_norm_statistics(partials, statistics, *running, count, **settings)

    return Launch(run, (statistics, *running, count))


def _recall(o: Operands) -> Launch:
    mean, variance = o.random(o.size.channels), o.random(o.size.channels).abs()
    statistics = o.empty(3, o.size.channels)
    run = partial(batch_norm.batch_norm_recall, eps=1e-5)
    return Launch(lambda: run(mean, variance, statistics), (statistics,))


def _normalizing(o: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics, weight and bias."""
    return o.random(3, o.size.channels), o.random(o.size.channels), o.random(o.size.channels)


def _signs(o: Operands) -> Tensor:
    """Bits of all channels, which a launch may write."""
    return packed_signs_reference(o.maps())


def _batch_norm(o: Operands) -> Launch:
    x, residual = o.maps(), o.maps()
    operands, y, signs = (*_normalizing(o), residual), o.like(x), _signs(o)
    run = partial(batch_norm.batch_norm, function="relu")
    return Launch(lambda: run(x, *operands, y, signs), (y, signs))


def _batch_norm_grad_sums(o: Operands) -> Launch:
    x, dy, term, (plan, shape) = o.maps(), o.maps(), o.maps(), _slices(o)
    operands, partials, grad = (*_normalizing(o), _signs(o)), o.empty(*shape), o.like(dy)
    run = partial(batch_norm_grad.batch_norm_grad_sums, group=plan.group, function="relu")
    return Launch(lambda: run(x, dy, term, *operands, partials, grad), (partials, grad))


def _batch_norm_grad_params(o: Operands) -> Launch:
    partials, (statistics, *_) = o.random(*_slices(o)[1]), _normalizing(o)
    dweight, dbias = o.empty(o.size.channels), o.empty(o.size.channels)
    run = batch_norm_grad.batch_norm_grad_params
    return Launch(lambda: run(partials, statistics, dweight, dbias), (dweight, dbias))


def _batch_norm_grad_input(o: Operands) -> Launch:
    x, dy, operands = o.maps(), o.maps(), _normalizing(o)
    sums, dx = (o.random(o.size.channels), o.random(o.size.channels)), o.like(x)
    run = partial(batch_norm_grad.batch_norm_grad_input, rows=1000, function="relu")
    return Launch(lambda: run(x, dy, *operands, *sums, dx), (dx,))


HALVES = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
UNDILATED = {"dilation": (1, 1)}
AVERAGES = {"count_include_pad": True, "divisor_override": None}


def _pooling(o: Operands, launcher: Callable[..., None], **settings: Any) -> Launch:
    x = o.maps()
    y = o.like(o.maps(by=2))
    return Launch(lambda: launcher(x, y, **settings), (y,))


def _pooling_grad(o: Operands, launcher: Callable[..., None], **settings: Any) -> Launch:
    dy = o.maps(by=2)
    dx = o.like(o.maps())
    return Launch(lambda: launcher(dy, dx, **settings), (dx,))


def _max_pool_grad(o: Operands) -> Launch:
    x, dy = o.maps(), o.maps(by=2)
    dx = o.like(x)
    return Launch(lambda: pool_max_grad.max_pool2d_grad(x, dy, dx, **HALVES, **UNDILATED), (dx,))


def _max_pool_codes(o: Operands) -> Launch:
    x = o.maps()
    y = o.like(o.maps(by=2))
    codes = o.empty(*y.shape[:3], y.shape[3] // 4, dtype=torch.uint8)
    run = pool_max.max_pool2d_codes
    return Launch(lambda: run(x, y, codes, **HALVES, **UNDILATED), (y, codes))


def _max_unpool(o: Operands) -> Launch:
    dy = o.maps(by=2)
    dx, codes = o.like(o.maps()), o.bytes(*dy.shape[:3], dy.shape[3] // 4)
    return Launch(lambda: pool_max_grad.max_unpool2d(dy, codes, dx, **HALVES), (dx,))


# Layout and sums


def _stage(o: Operands) -> Launch:
    y = o.like(o.maps(channels=3))
    x = o.random(y.shape[0], 3, *y.shape[1:3])
    return Launch(lambda: layout.stage(x, y), (y,))


def _stage_labels(o: Operands) -> Launch:
    given, flag = o.classes(1000), torch.zeros(1, device=o.device)
    target, words = o.like(given), torch.ones(3, dtype=torch.int64, device=o.device)
    step, record = words[:1], words[1:]

    def run() -> None:
        flag.zero_(), step.fill_(1), record.zero_()
        settings = {"classes": 900, "ignore_index": -100, "first": 0}
        labels.stage_labels(given, target, flag, step, record, **settings)

    return Launch(run, (target, flag, words))


def _unstage(o: Operands) -> Launch:
    y = o.maps()
    x = o.empty(y.shape[0], y.shape[3], *y.shape[1:3])
    return Launch(lambda: layout.unstage(y, x), (x,))


def _transfer(o: Operands) -> Launch:
    source = o.bytes(o.size.samples * o.size.side * o.size.channels)
    target = o.like(source)
    return Launch(lambda: transfer.transfer(source, target), (target,))


def _meet(o: Operands) -> Launch:
    reached = torch.zeros(3, dtype=torch.int32, device=o.device)
    return Launch(lambda: counts.meet(reached, 1, (0, 0)), (reached[:1],))


def _shuffle_channels(o: Operands) -> Launch:
    x = o.maps()
    y = o.like(x)
    return Launch(lambda: layout.shuffle_channels(x, y, groups=4), (y,))


def _cast(o: Operands) -> Launch:
    wide = o.maps(F32)
    narrow = o.empty(*wide.shape, dtype=BF16)
    return Launch(lambda: layout.cast(wide, narrow), (narrow,))


def _add(o: Operands) -> Launch:
    a, b = o.maps(), o.maps()
    out = o.like(a)
    return Launch(lambda: layout.add(a, b, out), (out,))


def _copy_channels(o: Operands) -> Launch:
    x, y = o.maps(), o.maps(channels=3 * o.size.channels)
    middle = y[..., o.size.channels : 2 * o.size.channels]
    return Launch(lambda: concat.copy_channels(x, middle), (middle,))


def _zero_channels(o: Operands) -> Launch:
    y = o.maps()
    return Launch(lambda: concat.zero_channels(y[..., 8:]), (y[..., 8:],))


def _sum_rows(o: Operands) -> Launch:
    rows = o.maps().flatten(0, 2)
    partials = o.empty(o.size.samples, 3, rows.shape[1])
    run = partial(reduce.sum_rows, group=o.size.side**2)
    return Launch(lambda: run(rows, partials), (partials,))


def _sum_partials(o: Operands) -> Launch:
    channels = o.size.channels
    partials, grad = o.random(5, channels, 3, 3, 32), o.empty(channels, 32, 3, 3)
    return Launch(lambda: reduce.sum_partials(partials, grad, first=True), (grad,))


# Loss and updates


OF_ROWS = {"ignore_index": -100, "smoothing": 0.1}


def _cross_entropy_rows(o: Operands) -> Launch:
    logits, target = o.random(o.size.samples, 1000), o.classes(1000)
    terms, lse = o.empty(o.size.samples, 2), o.empty(o.size.samples)
    run = partial(loss.cross_entropy_rows, **OF_ROWS)
    return Launch(lambda: run(logits, target, None, terms, lse), (terms, lse))


def _cross_entropy_pixels(o: Operands) -> Launch:
    logits = o.maps(channels=21).flatten(1, 2)
    target = logits.argmax(-1)
    partials = o.empty(o.size.samples, loss.pixel_splits(*logits.shape[1:]), 2)
    run = partial(loss.cross_entropy_pixels, **OF_ROWS)
    return Launch(lambda: run(logits, target, None, partials), (partials,))


def _arithmetic() -> Iterator[tuple[str, Make]]:
    """Launches whose last operand, or last two, are written."""
    for name, reads, settings in (
        ("affine", 1, {"scale": 0.5, "shift": 1.0}),
        ("add_multiple", 2, {"scale": 0.5}),
        ("multiply", 2, {}),
        ("multiply_grad", 3, {}),
    ):
        yield name, partial(_pointwise, getattr(arithmetic, name), reads, settings)


def _pointwise(
    launcher: Callable[..., None], reads: int, settings: dict[str, float], o: Operands
) -> Launch:
    read = [o.maps() for _ in range(reads)]
    written = [o.like(read[0]) for _ in range(2 if reads == 3 else 1)]
    return Launch(lambda: launcher(*read, *written, **settings), tuple(written))


def _broadcast(o: Operands, function: str) -> Launch:
    a, b = o.maps(), o.random(1, 1, 1, o.size.channels)
    y, wide = o.like(a), b.expand(a.shape)
    return Launch(lambda: broadcast.broadcast(a, wide, y, function=function), (y,))


def _broadcast_grad(o: Operands, function: str) -> Launch:
    dy, a, b = o.maps(), o.maps(), o.maps()
    dx = o.like(dy)
    run = partial(broadcast.broadcast_grad, function=function, first=False)
    return Launch(lambda: run(dy, a, b, dx), (dx,))


def _broadcast_grad_sums(o: Operands, kept: tuple[bool, bool, bool]) -> Launch:
    dy, a, b = o.maps(), o.maps(), o.maps()
    sizes = dy.shape[1:]
    columns = prod(size for size, keeps in zip(sizes, kept, strict=True) if keeps)
    slices = broadcast.sum_slices_of(prod(sizes) // columns, columns)
    sums = o.empty(len(dy), slices, columns)
    run = partial(broadcast.broadcast_grad_sums, function="divide", first=False, kept=kept)
    return Launch(lambda: run(dy, a, b, sums), (sums,))


def _broadcasts() -> Iterator[tuple[str, Make]]:
    for function in broadcast.FUNCTIONS:
        yield f"broadcast, {function}", partial(_broadcast, function=function)
        yield f"broadcast_grad, {function}", partial(_broadcast_grad, function=function)
    for kept in ((False, False, True), (True, True, False), (False, False, False)):
        yield f"broadcast_grad_sums, {kept}", partial(_broadcast_grad_sums, kept=kept)


def _softmax(o: Operands) -> Launch:
    x = o.maps().flatten(0, 2)
    y = o.like(x)
    return Launch(lambda: softmax.softmax(x, y, function="softmax"), (y,))


def _softmax_grad(o: Operands) -> Launch:
    y, dy = (o.maps().flatten(0, 2) for _ in range(2))
    dx = o.like(y)
    return Launch(lambda: softmax.softmax_grad(y, dy, dx, function="log_softmax"), (dx,))


def _dropout_parts(o: Operands) -> Launch:
    x, seed = o.maps().flatten(1, 2), torch.tensor([7], device=o.device)
    y, settings = o.like(x), {"part": "channel", "p": 0.3, "op_id": 1, "first_sample": 2}
    return Launch(lambda: dropout_parts.dropout_parts(x, y, seed, **settings), (y,))


def _resize(o: Operands, *, gradient: bool) -> Launch:
    """Maps of half the sides made as large as the others, or the gradient of that."""
    small, large = o.maps(by=2), o.maps()
    settings = {"mode": "bilinear", "scales": (0.5, 0.5)}
    launcher, read, like = (
        (resize.resize_grad, large, small) if gradient else (resize.resize, small, large)
    )
    written = o.like(like)
    return Launch(lambda: launcher(read, written, **settings), (written,))


def _reduce_axes(o: Operands, *, gradient: bool) -> Launch:
    """Deviations of the channels of rows."""
    samples, side, channels = o.size.samples, o.size.side, o.size.channels
    settings = {"sizes": (side, side, channels), "reduced": (False, True, False)}
    settings |= {"function": "std", "correction": 1.0}
    x, y = o.maps(), o.random(samples, side * channels, dtype=BF16)
    if gradient:
        dx = o.like(x)
        return Launch(lambda: reduce_axes.reduce_axes_grad(x, y, dx, **settings), (dx,))
    result = o.like(y)
    return Launch(lambda: reduce_axes.reduce_axes(x, result, **settings), (result,))


def _remap(o: Operands, *, gradient: bool) -> Launch:
    """Maps reflected around themselves by a pixel, a part of whose channels is taken in turn."""
    samples, side, channels = o.size.samples, o.size.side, o.size.channels
    axes = (remap.Axis(-1, mode="reflect"),) * 2 + (remap.Axis(1, 2),)
    x, y = o.maps(), o.random(samples, side + 2, side + 2, channels // 2, dtype=BF16)
    if gradient:
        dx = o.like(x)
        return Launch(lambda: remap.remap_grad(y, dx, axes=axes), (dx,))
    result = o.like(y)
    return Launch(lambda: remap.remap(x, result, axes=axes), (result,))


def _copy_strided(o: Operands) -> Launch:
    """Pixels of quarters of the channels side by side."""
    samples, side, channels = o.size.samples, o.size.side, o.size.channels
    x = o.maps().view(samples, side, side, channels // 4, 2, 2)
    y = o.empty(samples, side, 2, side, 2, channels // 4, dtype=BF16)
    source = x.permute(0, 1, 4, 2, 5, 3)
    return Launch(lambda: strided.copy_strided(source, y), (y,))


def _gate(o: Operands) -> Launch:
    x, gates = o.maps().flatten(1, 2), o.random(o.size.samples, o.size.channels, dtype=BF16)
    y = o.like(x)
    return Launch(lambda: gate.gate(x, gates, y), (y,))


def _gate_grad(o: Operands) -> Launch:
    x, dy = (o.maps().flatten(1, 2) for _ in range(2))
    gates, dx = o.random(o.size.samples, o.size.channels, dtype=BF16), o.like(x)
    sums = o.empty(o.size.samples, gate.gate_slices(*x.shape[1:]), o.size.channels)
    return Launch(lambda: gate.gate_grad(x, gates, dy, dx, sums), (dx, sums))


def _sum_slices(o: Operands) -> Launch:
    sums = o.random(o.size.samples, 9, o.size.channels)
    gates = o.empty(o.size.samples, o.size.channels, dtype=BF16)
    return Launch(lambda: gate.sum_slices(sums, gates), (gates,))


def _loss_total(o: Operands) -> Launch:
    partials, total = o.random(o.size.samples, 100, 2), o.empty(2)
    run = partial(loss.loss_total, mean=True, share=0.3)
    return Launch(lambda: run(partials, partials, total), (total,))


def _cross_entropy_grad(o: Operands) -> Launch:
    logits, target = o.random(o.size.samples, 1000), o.classes(1000)
    lse, total, one = o.random(o.size.samples), torch.ones(2, device=o.device), o.random(1)
    gradient = o.like(logits)
    operands = (logits, target, None, lse, total, one, gradient)
    return Launch(lambda: loss_grad.cross_entropy_grad(*operands, **OF_ROWS), (gradient,))


def _element_loss(o: Operands) -> Launch:
    x, target = o.maps(), o.maps(F32)
    partials = o.empty(o.size.samples, loss_elements.element_splits(x[0].numel()), 2)
    run = partial(loss_elements.element_loss, function="bce_with_logits")
    return Launch(lambda: run(x, target, None, None, partials), (partials,))


def _element_loss_grad(o: Operands) -> Launch:
    x, target, ones = o.maps(), o.maps(F32), torch.ones(2, device=o.device)
    dx = o.like(x)
    run = partial(loss_elements.element_loss_grad, function="bce_with_logits")
    return Launch(lambda: run(x, target, None, None, ones, ones, dx), (dx,))


def _updating(
    o: Operands, launcher: Callable[..., None], num_states: int,
    shape: tuple[int, int] | None = None, **switches: bool,
) -> Launch:  # fmt: skip
    """`launcher` gets (parameter, gradient, *states, control), all of one shape."""
    shape = shape or (16 * o.size.side, 96)
    before = [o.random(*shape).abs() for _ in range(1 + num_states)]
    param, *states = after = [o.like(tensor) for tensor in before]
    grad, control = o.random(*shape), torch.full((8,), 0.1, device=o.device)
    control[7] = 0.0  # the flag by which nothing is updated

    def run() -> None:
        for tensor, start in zip(after, before, strict=True):
            tensor.copy_(start)
        launcher(param, grad, *states, control, **switches)

    return Launch(run, tuple(after))


def _many(launcher: Callable[..., None]) -> Callable[..., None]:
    """`launcher` of many parameters as one of a single parameter, in pieces."""

    def run(*operands: Tensor, **switches: bool) -> None:
        *tensors, control = operands
        launcher(*(tensor.split(3 * len(tensor) // 10) for tensor in tensors), control, **switches)

    return run


def _product_update(
    o: Operands, launcher: Callable[..., None], num_states: int, **switches: bool
) -> Launch:
    inputs, outputs = 4 * o.size.channels, o.size.channels
    x, dy = (o.random(o.size.samples, size, dtype=BF16) for size in (inputs, outputs))

    def update(param: Tensor, grad: Tensor, *operands: Tensor, **switches: bool) -> None:
        launcher(x, dy, param, *operands, precision="ieee", **switches)

    return _updating(o, update, num_states, shape=(outputs, inputs), **switches)


SGD = {"nesterov": True, "maximize": False}
ADAMW = {"maximize": False}


LAUNCHES: dict[str, Make] = {
    **dict(_convolutions()),
    **dict(_depthwises()),
    "cell_moments": _cell_moments,
    "conv2d_grad_last": _last_term,
    "merge_cells": _merge_cells,
    "sum_cells": _sum_cells,
    "conv2d_grad_bias, pixels": partial(_grad_bias, cell=1),
    "conv2d_grad_bias, cells": partial(_grad_bias, cell=CELL),
    "pack_weight": _pack,
    "pack_weight_grad_input": _pack_grad_input,
    **dict(_products()),
    "linear_grad_bias": _linear_grad_bias,
    "relu": _relu,
    "relu_grad": _relu_grad,
    **dict(_activations()),
    **dict(_unaries()),
    "prelu": _prelu,
    "prelu_grad": partial(_prelu_grad, slopes=0),
    "prelu_grad, one slope": partial(_prelu_grad, slopes=1),
    "dropout": _dropout,
    "dropout_parts": _dropout_parts,
    "local_response_norm": _lrn,
    "local_response_norm_grad": _lrn_grad,
    "group_norm": partial(_group_norm, backward=False),
    "group_norm_grad": partial(_group_norm, backward=True),
    "scale_channels": _scale_channels,
    "scale_channels_grad": _scale_channels_grad,
    "layer_norm": _layer_norm,
    "layer_norm_grad": _layer_norm_grad,
    "add_sample_sums": _add_sample_sums,
    "batch_norm_moments": _moments,
    "batch_norm_statistics": _statistics,
    "batch_norm_recall": _recall,
    "batch_norm": _batch_norm,
    "batch_norm_grad_sums": _batch_norm_grad_sums,
    "batch_norm_grad_params": _batch_norm_grad_params,
    "batch_norm_grad_input": _batch_norm_grad_input,
    "max_pool2d": partial(_pooling, launcher=pool_max.max_pool2d, **HALVES, **UNDILATED),
    "max_pool2d_grad": _max_pool_grad,
    "max_pool2d_codes": _max_pool_codes,
    "max_unpool2d": _max_unpool,
    "avg_pool2d": partial(_pooling, launcher=pool_avg.avg_pool2d, **HALVES, **AVERAGES),
    "avg_pool2d_grad": partial(
        _pooling_grad, launcher=pool_avg.avg_pool2d_grad, **HALVES, **AVERAGES
    ),
    "adaptive_avg_pool2d": partial(_pooling, launcher=pool_avg.adaptive_avg_pool2d),
    "adaptive_avg_pool2d_grad": partial(_pooling_grad, launcher=pool_avg.adaptive_avg_pool2d_grad),
    **dict(_arithmetic()),
    **dict(_broadcasts()),
    "softmax": _softmax,
    "softmax_grad": _softmax_grad,
    "resize": partial(_resize, gradient=False),
    "resize_grad": partial(_resize, gradient=True),
    "remap": partial(_remap, gradient=False),
    "remap_grad": partial(_remap, gradient=True),
    "copy_strided": _copy_strided,
    "reduce_axes": partial(_reduce_axes, gradient=False),
    "reduce_axes_grad": partial(_reduce_axes, gradient=True),
    "gate": _gate,
    "gate_grad": _gate_grad,
    "sum_slices": _sum_slices,
    "stage": _stage,
    "stage_labels": _stage_labels,
    "unstage": _unstage,
    "transfer": _transfer,
    "meet": _meet,
    "shuffle_channels": _shuffle_channels,
    "cast": _cast,
    "add": _add,
    "copy_channels": _copy_channels,
    "zero_channels": _zero_channels,
    "sum_rows": _sum_rows,
    "sum_partials": _sum_partials,
    "cross_entropy_rows": _cross_entropy_rows,
    "cross_entropy_pixels": _cross_entropy_pixels,
    "loss_total": _loss_total,
    "cross_entropy_grad": _cross_entropy_grad,
    "element_loss": _element_loss,
    "element_loss_grad": _element_loss_grad,
    "linear_grad_weight_sgd": partial(
        _product_update, launcher=linear_update.linear_grad_weight_sgd, num_states=1, **SGD
    ),
    "linear_grad_weight_adamw": partial(
        _product_update, launcher=linear_update.linear_grad_weight_adamw, num_states=2, **ADAMW
    ),
    "sgd": partial(_updating, launcher=optim.sgd, num_states=1, **SGD),
    "sgd_many": partial(_updating, launcher=_many(optim.sgd_many), num_states=1, **SGD),
    "sgd_partials": partial(_updating, launcher=optim_partials.sgd_partials, num_states=1, **SGD),
    "adamw": partial(_updating, launcher=optim.adamw, num_states=2, **ADAMW),
    "adamw_many": partial(_updating, launcher=_many(optim.adamw_many), num_states=2, **ADAMW),
    "adamw_partials": partial(
        _updating, launcher=optim_partials.adamw_partials, num_states=2, **ADAMW
    ),
}
