"""Launches whose sizes are all 1, which Triton compiles in as constants, and of odd views."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.copy import layout, remap, strided
from tvdnn.kernels.linear import fused_update as linear_update
from tvdnn.kernels.linear import passes as linear
from tvdnn.kernels.loss import cross_entropy as loss
from tvdnn.kernels.loss import cross_entropy_grad as loss_grad
from tvdnn.kernels.loss import per_element as loss_elements
from tvdnn.kernels.norm import batch_norm, batch_norm_grad
from tvdnn.kernels.norm import local_response_norm as norm
from tvdnn.kernels.optim import from_partials as optim_partials
from tvdnn.kernels.optim import update as optim
from tvdnn.kernels.pointwise import (
    activation,
    arithmetic,
    broadcast,
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

PARTED = {"part": "channel", "p": 1.0, "op_id": 1, "first_sample": 1}


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _elementwise() -> None:
    x, control = _empty(1, 1, 1, 1), _empty(8)
    activation.relu(x, x)
    activation.relu_grad(x, x, x)
    activation.activate(x, x, function="elu", coefficient=1)
    activation.activate_grad(x, x, x, function="elu", coefficient=1)
    unary.unary(x, x, function="pow", a=1)
    unary.unary_grad(x, x, x, function="softplus", a=1, b=1)
    layout.add(x, x, x)
    layout.stage(_empty(1, 2, 2, 2)[:, :1, ::2, ::2], x)
    dropout.dropout(x, x, _empty(1, dtype=torch.int64), p=0.5, op_id=1, first_sample=1)
    arithmetic.affine(x, x, scale=1, shift=1)
    arithmetic.add_multiple(x, x, x, scale=1)
    arithmetic.multiply_grad(x, x, x, x, x)
    one = x[0, 0]
    dropout_parts.dropout_parts(one[None], one[None], _empty(1, dtype=torch.int64), **PARTED)
    softmax.softmax(one, one, function="softmax")
    softmax.softmax_grad(one, one, one, function="log_softmax")
    optim.sgd(x, x, x, control, nesterov=False, maximize=False)
    optim.adamw(x, x, x, x, control, maximize=False)
    optim_partials.sgd_partials(x, x, x, control, nesterov=False, maximize=False)
    optim_partials.adamw_partials(_empty(1), x, x[0, 0, 0], x[0, 0, 0], control, maximize=False)


def _maps() -> None:
    x = _empty(1, 1, 1, 1)
    window = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0)}
    pool_max.max_pool2d(x, x, **window, dilation=(1, 1))
    pool_max_grad.max_pool2d_grad(x, x, x, **window, dilation=(1, 1))
    pool_avg.avg_pool2d(x, x, **window, count_include_pad=True, divisor_override=None)
    pool_avg.avg_pool2d_grad(x, x, **window, count_include_pad=False, divisor_override=None)
    pool_avg.adaptive_avg_pool2d(x, x)
    pool_avg.adaptive_avg_pool2d_grad(x, x)
    resize.resize(x, x, mode="bilinear", scales=(1, 1))
    resize.resize_grad(x, x, mode="nearest", scales=(1, 1))
    remap.remap(x, x, axes=(remap.Axis(1, 1, "circular"),) * 3)
    remap.remap_grad(x, x, axes=(remap.Axis(),) * 3)
    strided.copy_strided(x, x)
    prelu.prelu(x[0], x[0, 0, 0], x[0])
    prelu.prelu_grad(x[0], x[0], x[0, 0, 0], x[0], x)
    settings = {"sizes": (1,), "reduced": (True,), "function": "std"}
    reduce_axes.reduce_axes(x[0, 0], x[0, 0], **settings)
    reduce_axes.reduce_axes_grad(x[0, 0], x[0, 0], x[0, 0], **settings)
    broadcast.broadcast(x, x, x, function="add", scale=1)
    broadcast.broadcast_grad(x, x, x, x, function="divide", first=False)
    settings = {"function": "multiply", "first": True, "kept": (True, False, True)}
    broadcast.broadcast_grad_sums(x, None, x, x[0], **settings)
    gate.gate(x[0], x[0, 0], x[0])
    gate.gate_grad(x[0], x[0, 0], x[0], x[0], x[0])
    gate.sum_slices(x[0], x[0, 0])
    settings = {"size": 1, "alpha": 1e-4, "beta": 0.75, "k": 2.0}
    norm.local_response_norm(x, x, **settings)
    norm.local_response_norm_grad(x, x, x, **settings)


def _batch_norm() -> None:
    x, partials, statistics, one = _empty(1, 1, 1, 1), _empty(1, 1, 2, 1), _empty(3, 1), _empty(1)
    count = _empty(1, dtype=torch.int64)
    merge = {"shape": (1, 1, 1, 1), "group": 1, "momentum": 1.0, "eps": 1.0}
    batch_norm.batch_norm_moments(x, partials, group=1)
    batch_norm.batch_norm_statistics(partials, statistics, one, one, count, **merge)
    batch_norm.batch_norm_statistics(partials, statistics, None, None, None, **merge)
    batch_norm.batch_norm_recall(one, one, statistics, eps=1e-5)
    batch_norm.batch_norm(x, statistics, one, None, None, x)
    sums = batch_norm_grad.batch_norm_grad_sums
    sums(x, x, None, statistics, None, one, None, partials, None, group=1)
    batch_norm_grad.batch_norm_grad_params(partials, statistics, one, one)
    grad = batch_norm_grad.batch_norm_grad_input
    grad(x, x, statistics, one, None, one, one, x, rows=1)
    grad(None, x, statistics, one, None, None, None, x, rows=1)


def _products(dtype: torch.dtype) -> None:
    x, partial_sum, bias = _empty(1, 1, dtype=dtype), _empty(1, 1, 1), _empty(1)
    linear.linear(x, x, bias, x, precision="tf32")
    linear.linear_grad_input(x, x, x, precision="tf32")
    linear.linear_grad_weight(x, x, partial_sum, group=1, precision="tf32")
    linear.linear_grad_bias(x, partial_sum, group=1)
    param, settings = _empty(1, 1), {"maximize": False, "precision": "tf32"}
    linear_update.linear_grad_weight_adamw(x, x, param, param, param, _empty(8), **settings)


def _loss() -> None:
    logits, target, lse = _empty(1, 1), _empty(1, dtype=torch.int64), _empty(1)
    total, options = _empty(2), {"ignore_index": 1, "smoothing": 1}
    loss.cross_entropy_rows(logits, target, total, total, lse, **options)
    loss.cross_entropy_pixels(logits[None], target[None], total, total[None, None], **options)
    loss.loss_total(total, total, total, mean=False, share=1)
    loss_grad.cross_entropy_grad(logits, target, total, lse, total, lse, logits, **options)
    operands = (logits, logits, lse, lse)
    loss_elements.element_loss(*operands, total[None, None], function="mse")
    loss_elements.element_loss_grad(*operands, total, lse, logits, function="bce_with_logits")


CASES = [
    Case("elementwise", _elementwise),
    Case("maps", _maps),
    Case("batch norm", _batch_norm),
    Case("products", partial(_products, torch.float32)),
    Case("bfloat16 products", partial(_products, torch.bfloat16)),
    Case("loss", _loss),
]
