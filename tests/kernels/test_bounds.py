"""Launchers write all of their outputs, and nothing beside them, where an arena has neighbours."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import randn
from tvdnn.kernels.conv import batch_stats as conv_moments
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv import depthwise as conv_depthwise
from tvdnn.kernels.copy import layout, remap, strided
from tvdnn.kernels.linear import passes as linear
from tvdnn.kernels.loss import cross_entropy as loss
from tvdnn.kernels.loss import cross_entropy_grad as loss_grad
from tvdnn.kernels.loss import per_element as loss_elements
from tvdnn.kernels.norm import group_norm, layer_norm
from tvdnn.kernels.norm import local_response_norm as norm
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
from tvdnn.kernels.reduce import per_sample as sample_sums

MARGIN = 4096
SHAPE = (1, 5, 7, 19)
DTYPES = [torch.float32, torch.bfloat16]
Output = Callable[..., Tensor]
Launch = Callable[[Tensor, Output], None]


def _activation(x: Tensor, output: Output) -> None:
    activation.relu(x, output(*SHAPE))
    activation.relu_grad(x, x, output(*SHAPE))
    for function in activation.FUNCTIONS:
        activation.activate(x, output(*SHAPE), function=function)
        activation.activate_grad(x, x, output(*SHAPE), function=function)


def _unary(x: Tensor, output: Output) -> None:
    x = x.abs() + 0.1
    for function in unary.FUNCTIONS:
        unary.unary(x, output(*SHAPE), function=function, a=0.5, b=2.0)
        unary.unary_grad(x, x, output(*SHAPE), function=function, a=0.5, b=2.0)


def _prelu(x: Tensor, output: Output) -> None:
    x = x.flatten(1, 2)
    for slopes in (1, 19):
        slope = torch.ones(slopes, device=x.device)
        sums = output(1, prelu.prelu_terms(35, 19, slopes), 1, slopes, dtype=torch.float32)
        prelu.prelu(x, slope, output(1, 35, 19))
        prelu.prelu_grad(x, x, slope, output(1, 35, 19), sums)


def _layout(x: Tensor, output: Output) -> None:
    layout.stage(x, output(1, 7, 19, 5))
    layout.unstage(x, output(1, 19, 5, 7))
    layout.cast(x, output(*SHAPE))
    layout.add(x, x, output(*SHAPE))


def _arithmetic(x: Tensor, output: Output) -> None:
    arithmetic.affine(x, output(*SHAPE), scale=2.0)
    arithmetic.add_multiple(x, x, output(*SHAPE), scale=2.0)
    arithmetic.multiply(x, x, output(*SHAPE))
    arithmetic.multiply_grad(x, x, x, output(*SHAPE), output(*SHAPE))


def _broadcast(x: Tensor, output: Output) -> None:
    gates = x[:, :, :, :1].expand(x.shape)
    broadcast.broadcast(x, gates, output(*SHAPE), function="multiply")
    broadcast.broadcast_grad(x, None, gates, output(*SHAPE), function="multiply", first=True)
    for kept in ((True, True, False), (False, False, True), (False, False, False)):
        columns = math.prod(size for size, keeps in zip(SHAPE[1:], kept, strict=True) if keeps)
        slices = broadcast.sum_slices_of(665 // columns, columns)
        sums = output(1, slices, columns, dtype=torch.float32)
        settings = {"function": "multiply", "first": False, "kept": kept}
        broadcast.broadcast_grad_sums(x, x, None, sums, **settings)


def _gate(x: Tensor, output: Output) -> None:
    x, gates, sums = (
        x.flatten(1, 2),
        x[0, 0, :1].contiguous(),
        output(1, 1, 19, dtype=torch.float32),
    )
    gate.gate(x, gates, output(1, 35, 19))
    gate.gate_grad(x, gates, x, output(1, 35, 19), sums)
    gate.sum_slices(sums, output(1, 19))


def _dropout(x: Tensor, output: Output) -> None:
    seed = torch.tensor([1], device=x.device)
    place = {"p": 0.5, "op_id": 1, "first_sample": 3}
    dropout.dropout(x, output(*SHAPE), seed, **place)
    dropout_parts.dropout_parts(x.flatten(1, 2), output(1, 35, 19), seed, part="row", **place)


def _softmax(x: Tensor, output: Output) -> None:
    rows = x.view(35, 19)
    softmax.softmax(rows, output(35, 19), function="softmax")
    softmax.softmax_grad(rows, rows, output(35, 19), function="log_softmax")


def _resize(x: Tensor, output: Output) -> None:
    settings = {"mode": "bilinear", "scales": (0.5, 1.0)}
    resize.resize(x, output(1, 10, 7, 19), **settings)
    resize.resize_grad(x, output(1, 3, 7, 19), mode="nearest", scales=(0.6, 1.0))


def _remap(x: Tensor, output: Output) -> None:
    axes = (remap.Axis(-2, mode="reflect"), remap.Axis(1, 3), remap.Axis(-1, mode="replicate"))
    remap.remap(x, output(1, 8, 2, 21), axes=axes)
    remap.remap_grad(x.new_ones(1, 8, 2, 21), output(*SHAPE), axes=axes)
    strided.copy_strided(x.transpose(1, 3), output(1, 19, 7, 5))


def _reduce_axes(x: Tensor, output: Output) -> None:
    settings = {"sizes": (5, 7, 19), "reduced": (True, False, True), "function": "var"}
    y = output(1, 7)
    reduce_axes.reduce_axes(x, y, **settings)
    reduce_axes.reduce_axes_grad(x, y, output(*SHAPE), **settings)


def _max_pool(x: Tensor, output: Output) -> None:
    for kernel, stride, out in [
        (2, 2, (1, 2, 3, 19)),
        (3, 1, (1, 3, 5, 19)),
        (2, 3, (1, 2, 2, 19)),
    ]:
        settings = {name: (size, size) for name, size in [("kernel", kernel), ("stride", stride)]}
        settings |= {"padding": (0, 0), "dilation": (1, 1)}
        pool_max.max_pool2d(x, output(*out), **settings)
        dy = torch.ones(out, dtype=x.dtype, device=x.device)
        pool_max_grad.max_pool2d_grad(x, dy, output(*SHAPE), **settings)


def _avg_pool(x: Tensor, output: Output) -> None:
    settings = {"kernel": (2, 3), "stride": (2, 2), "padding": (1, 1)}
    options = {"count_include_pad": False, "divisor_override": None}
    pool_avg.avg_pool2d(x, output(1, 3, 4, 19), **settings, **options)
    dy = torch.ones(1, 3, 4, 19, dtype=x.dtype, device=x.device)
    pool_avg.avg_pool2d_grad(dy, output(*SHAPE), **settings, **options)
    pool_avg.adaptive_avg_pool2d(x, output(1, 2, 3, 19))
    pool_avg.adaptive_avg_pool2d_grad(dy[:, :2, :3].contiguous(), output(*SHAPE))


def _linear(x: Tensor, output: Output) -> None:
    for features in (19, 16):
        rows = x.view(-1)[: 35 * features].view(35, features)
        weight = rows[:7].contiguous()
        linear.linear(rows, weight, None, output(35, 7), precision="ieee")
        dy = x.view(-1)[: 35 * 7].view(35, 7)
        linear.linear_grad_input(dy, weight, output(35, features), precision="ieee")
        wide = {"dtype": torch.float32}
        options = {"group": 16, "precision": "ieee"}
        linear.linear_grad_weight(rows, dy, output(3, 7, features, **wide), **options)
        linear.linear_grad_bias(dy, output(3, 7, **wide), group=16)


def _norm(x: Tensor, output: Output) -> None:
    settings = {"size": 5, "alpha": 0.1, "beta": 0.75, "k": 1.0}
    norm.local_response_norm(x, output(*SHAPE), **settings)
    norm.local_response_norm_grad(x, x, output(*SHAPE), **settings)


def _statistics(x: Tensor, output: Output) -> None:
    """Normalizations by row and by group, and scales, whose gradients leave sums by sample."""
    rows, weight = x.view(1, 35, 19), torch.ones(19, device=x.device)
    sums = [output(1, 1, kinds, 19, dtype=torch.float32) for kinds in (2, 2, 2, 1)]
    moments, slopes = (output(1, 19, 2, dtype=torch.float32) for _ in range(2))
    layer_norm.layer_norm(rows, weight, weight, output(1, 35, 19), eps=1e-5)
    layer_norm.layer_norm_grad(rows, rows, weight, output(1, 35, 19), sums[0], eps=1e-5)
    settings = {"groups": 19, "eps": 1e-5}
    group_norm.group_norm(rows, weight, None, output(1, 35, 19), moments, sums[1], **settings)
    operands = (rows, rows, weight, moments, output(1, 35, 19), sums[2], slopes)
    group_norm.group_norm_grad(*operands, groups=19)
    channel_scale.scale_channels(rows, weight, output(1, 35, 19))
    channel_scale.scale_channels_grad(rows, rows, weight, output(1, 35, 19), sums[3])
    running = output(1, 19, dtype=torch.float32)
    sample_sums.add_sample_sums(sums[3], running, kind=0, first=True)


def _depthwise(x: Tensor, output: Output) -> None:
    maps = x.view(-1)[: 35 * 16].view(1, 5, 7, 16)
    taps = maps[0, 0, 0].expand(3, 3, 16).contiguous()
    settings = {"stride": (1, 2), "padding": (1, 1), "dilation": (1, 1)}
    precise = settings | {"precision": "ieee"}
    conv_depthwise.depthwise_conv2d(maps, taps, None, output(1, 5, 4, 16), **precise)
    dy = maps[:, :, :4].contiguous()
    conv_depthwise.depthwise_conv2d_grad_input(dy, taps, output(1, 5, 7, 16), **precise)
    sums = output(2, 16, 3, 3, 1, dtype=torch.float32)
    conv_depthwise.depthwise_conv2d_grad_weight(maps, dy, sums, first=True, **settings)


def _moments(x: Tensor, output: Output) -> None:
    cells, wide = conv_moments.MomentCells((5, 7), (1, 2, 8), flat=False), {"dtype": torch.float32}
    moments = output(*cells.shape(1, 19), **wide)
    conv_moments.cell_moments(x, moments, cells=cells)
    conv_moments.merge_cells(moments, output(1, 1, 2, 19, **wide), samples=1, cells=cells)
    few, packed = x.view(-1)[: 35 * 3].view(1, 5, 7, 3), x.view(-1)[: 40 * 3].view(40, 1, 1, 3)
    geometry = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    settings = geometry | {"precision": "tf32"}
    left = conv_moments.moment_cells((5, 7), (5, 7), (40, 3, 1, 1), **settings, dtype=x.dtype)
    assert left is not None
    by_cell = {"moments": output(*left.shape(1, 40), **wide), "cells": left}
    conv.conv2d(few, packed, None, output(1, 5, 7, 40), **settings, **by_cell)


def _loss(x: Tensor, output: Output) -> None:
    logits = x.view(35, 19)
    target = torch.arange(35, device=x.device) % 19
    wide = {"dtype": torch.float32}
    terms, lse, total = output(35, 2, **wide), output(35, **wide), output(2, **wide)
    options = {"ignore_index": -100, "smoothing": 0.1}
    loss.cross_entropy_rows(logits, target, None, terms, lse, **options)
    loss.cross_entropy_pixels(logits[None], target[None], None, output(1, 1, 2, **wide), **options)
    loss.loss_total(terms, None, total, mean=True, share=1.0)
    control = torch.ones(1, device=x.device)
    operands = (logits, target, None, lse, total, control)
    loss_grad.cross_entropy_grad(*operands, output(35, 19), **options)
    targets, function = x.float(), {"function": "mse"}
    loss_elements.element_loss(x, targets, None, None, output(1, 1, 2, **wide), **function)
    operands = (x, targets, None, None, total, control)
    loss_elements.element_loss_grad(*operands, output(*SHAPE), **function)


def _optim(x: Tensor, output: Output) -> None:
    param, buffer = (output(665, dtype=torch.float32) for _ in range(2))
    param.zero_()
    control = torch.tensor([0.1, 0.9, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], device=x.device)
    grad = x.view(-1).float()
    optim.sgd(param, grad, buffer, control, nesterov=False, maximize=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "launch",
    [
        _activation,
        _unary,
        _prelu,
        _layout,
        _arithmetic,
        _broadcast,
        _gate,
        _softmax,
        _resize,
        _remap,
        _reduce_axes,
        _dropout,
        _max_pool,
        _avg_pool,
        _linear,
        _norm,
        _statistics,
        _depthwise,
        _moments,
        _loss,
        _optim,
    ],
)
def test_writes_its_outputs_alone(
    launch: Launch, dtype: torch.dtype, generator: torch.Generator
) -> None:
    x = randn(SHAPE, dtype, generator)
    buffers: list[tuple[Tensor, int]] = []

    def output(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        size = math.prod(shape)
        buffer = torch.full((size + 2 * MARGIN,), math.nan, dtype=dtype, device=x.device)
        buffers.append((buffer, size))
        return buffer[MARGIN : MARGIN + size].view(shape)

    launch(x, output)
    assert buffers
    for buffer, size in buffers:
        assert buffer[MARGIN : MARGIN + size].isfinite().all()
        assert buffer[:MARGIN].isnan().all()
        assert buffer[MARGIN + size :].isnan().all()
