"""Batch normalization over the kernels."""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from ..functional import counted_batch_norm
from ..kernels.norm import batch_norm as kernels
from ..kernels.norm import batch_norm_grad as grad_kernels
from ..kernels.norm.batch_norm_tiles import batch_norm_plan
from .maps import apply, checked, choose, owned, torchs_own

Statistic = Tensor | None


class BatchNorm1d(torch.nn.BatchNorm1d):
    """torch.nn.BatchNorm1d of [N, C] or [N, C, L], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return normalize_batch(self, input)


class BatchNorm2d(torch.nn.BatchNorm2d):
    """torch.nn.BatchNorm2d of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return normalize_batch(self, input)


def normalize_batch(layer: _BatchNorm, input: Tensor) -> Tensor:
    """What torch's batch normalization layer computes and tracks, in its mode."""
    if not torchs_own(input):
        layer._check_input_dim(input)
    recalls = not layer.training and layer.running_mean is not None
    tracks = layer.training and layer.track_running_stats
    running = (layer.running_mean, layer.running_var) if recalls or tracks else (None, None)
    count = layer.num_batches_tracked if tracks else None
    momentum = 0.0 if layer.momentum is None and count is None else layer.momentum
    affine = (layer.weight, layer.bias)
    return batch_norm(input, *running, *affine, not recalls, momentum, layer.eps, count)


def batch_norm(
    x: Tensor,
    running_mean: Statistic,
    running_var: Statistic,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    num_batches_tracked: Statistic = None,
) -> Tensor:
    """torch.nn.functional.batch_norm of [N, C], [N, C, L] or [N, C, H, W].

    Besides, num_batches_tracked counts the batches, by which the running statistics are their mean
    where momentum is None.
    """
    state = (running_mean, running_var, num_batches_tracked)
    if torchs_own(x) or x.numel() == 0:
        affine = (weight, bias)
        return counted_batch_norm(x, *state[:2], *affine, training, momentum, eps, state[2])
    if training and x.numel() == x.shape[1]:
        raise ValueError(f"a batch of shape {tuple(x.shape)} has one value a channel: no variance")
    settings = {"training": training, "momentum": momentum, "eps": eps}
    return apply(_BatchNorm2d, checked(x), weight, bias, state, settings)


def _rows(x: Tensor) -> Tensor:
    """[N, C, ...] of any strides as contiguous [N, pixels, C]; no copy if channels_last."""
    return x.movedim(1, -1).contiguous().view(x.shape[0], -1, x.shape[1])


def _like(rows: Tensor, x: Tensor) -> Tensor:
    """Rows [N, pixels, C] in the shape of x, and in its memory format."""
    y = rows.view(x.shape[0], *x.shape[2:], x.shape[1]).movedim(-1, 1)
    return owned(y.contiguous() if x.is_contiguous() else y)


class _BatchNorm2d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        state: tuple[Statistic, Statistic, Statistic],
        settings: dict[str, Any],
    ) -> Tensor:
        rows = _rows(x)
        statistics = _statistics(rows, state, settings)
        y = torch.empty_like(rows)
        launch = choose(x, kernels.batch_norm, kernels.batch_norm_reference)
        launch(rows, statistics, weight, bias, None, y)
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.training = settings["training"]
        return _like(y, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, statistics = ctx.saved_tensors
        rows, dy = _rows(x), _rows(dy)
        dweight, dbias = _sums(rows, dy, statistics, weight, bias)
        dx = torch.empty_like(rows)
        merged = (dweight, dbias) if ctx.training else (None, None)
        launch = choose(
            x, grad_kernels.batch_norm_grad_input, grad_kernels.batch_norm_grad_input_reference
        )
        num_rows = prod(rows.shape[:2])
        launch(rows, dy, statistics, weight, bias, *merged, dx, rows=num_rows)
        grads = (
            None if param is None else grad.to(param.dtype)
            for param, grad in ((weight, dweight), (bias, dbias))
        )
        return _like(dx, x), *grads, None, None


def _statistics(
    rows: Tensor, state: tuple[Statistic, Statistic, Statistic], settings: dict[str, Any]
) -> Tensor:
    """The statistics to normalize by; in training the running ones, if any, take a step."""
    statistics = rows.new_empty((3, rows.shape[-1]), dtype=torch.float32)
    eps = settings["eps"]
    if not settings["training"]:
        recall = choose(rows, kernels.batch_norm_recall, kernels.batch_norm_recall_reference)
        recall(*state[:2], statistics, eps=eps)
        return statistics
    plan = batch_norm_plan(rows.shape)
    moments = rows.new_empty(
        plan.partials_shape(rows.shape[0], rows.shape[-1]), dtype=torch.float32
    )
    choose(rows, kernels.batch_norm_moments, kernels.batch_norm_moments_reference)(
        rows, moments, group=plan.group
    )
    merge = choose(rows, kernels.batch_norm_statistics, kernels.batch_norm_statistics_reference)
    cut = {"shape": tuple(rows.shape), "group": plan.group}
    merge(moments, statistics, *state, **cut, momentum=settings["momentum"], eps=eps)
    return statistics


def _sums(
    rows: Tensor, dy: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of weight and bias."""
    plan = batch_norm_plan(rows.shape)
    shape = plan.partials_shape(rows.shape[0], rows.shape[-1])
    partials = rows.new_empty(shape, dtype=torch.float32)
    add = choose(
        rows, grad_kernels.batch_norm_grad_sums, grad_kernels.batch_norm_grad_sums_reference
    )
    given = (rows, dy, None, statistics, weight, bias, None, partials, None)
    add(*given, group=plan.group)
    dweight, dbias = torch.empty_like(statistics[0]), torch.empty_like(statistics[0])
    merge = choose(
        rows, grad_kernels.batch_norm_grad_params, grad_kernels.batch_norm_grad_params_reference
    )
    merge(partials, statistics, dweight, dbias)
    return dweight, dbias
