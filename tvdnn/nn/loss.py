"""Losses over the kernels: cross-entropy of rows and pixels, binary cross-entropy, squares."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels.loss import cross_entropy as kernels
from ..kernels.loss import cross_entropy_grad as grad_kernels
from ..kernels.loss import per_element as element_kernels
from .maps import apply, checked, choose, shape_only, torchs_own


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss, run by tvdnn's kernels.

    It is torch's own where targets are probabilities, and on logits neither [N, C] nor
    [N, C, H, W].
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point() or input.dim() not in (2, 4):
            return super().forward(input, target)
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class BCEWithLogitsLoss(torch.nn.BCEWithLogitsLoss):
    """torch.nn.BCEWithLogitsLoss, run by tvdnn's kernels.

    It is torch's own per element, with weights that are neither one nor one a channel, where the
    target requires a gradient, and of logits that have no dimension or no element.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        weights = (self.weight, self.pos_weight)
        known = all(_is_by_channel(weight, input) for weight in weights)
        known &= input.shape == target.shape
        if self.reduction == "none" or not known or _is_torchs(input, target):
            return super().forward(input, target)
        return _element_loss(input, target, *weights, "bce_with_logits", self.reduction)


class MSELoss(torch.nn.MSELoss):
    """torch.nn.MSELoss, run by tvdnn's kernels.

    It is torch's own per element, where the target requires a gradient or does not broadcast to the
    input's shape, and of an input that has no dimension or no element.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "none" or _is_torchs(input, target):
            return super().forward(input, target)
        return _element_loss(input, target, None, None, "mse", self.reduction)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """torch.nn.functional.cross_entropy of logits [N, C] or [N, C, H, W] and class indices."""
    crowded = logits.dim() > 2 and logits.shape[1] > kernels.MOST_CLASSES
    if torchs_own(logits, target) or crowded:
        return functional.cross_entropy(
            logits,
            target,
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
    functional.cross_entropy(shape_only(logits), shape_only(target), reduction=reduction)
    weights = None if weight is None else kernels.with_sum(weight)
    operands = (_channels_last(checked(logits)), target.contiguous(), weights)
    settings = {"ignore_index": ignore_index, "smoothing": label_smoothing}
    return apply(_CrossEntropy, *operands, reduction, settings)


def _element_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    pos_weight: Tensor | None,
    function: str,
    reduction: str,
) -> Tensor:
    """The "mean" or "sum" of what kernels/loss/per_element.py has under this name."""
    functional.mse_loss(shape_only(x), shape_only(target), reduction=reduction)
    target = target.expand_as(x)
    x, target = (x[:, None], target[:, None]) if x.dim() == 1 else (x, target)
    operands = (_channels_last(checked(x)), _channels_last(target.float()))
    weights = (None if each is None else each.float().flatten() for each in (weight, pos_weight))
    return apply(_ElementLoss, *operands, *weights, function, reduction == "mean")


def _is_torchs(x: Tensor, target: Tensor) -> bool:
    """Whether a loss of elements is left to torch."""
    if torchs_own(x, target) or target.requires_grad or x.dim() == 0 or x.numel() == 0:
        return True
    return not _broadcasts_to(target.shape, x.shape)


def _broadcasts_to(shape: Sequence[int], whole: Sequence[int]) -> bool:
    sizes = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(size in (1, other) for size, other in sizes)


def _is_by_channel(weight: Tensor | None, x: Tensor) -> bool:
    """Whether weights are none, one, or one a channel of x [N, C] or [N, C, H, W]."""
    if weight is None or weight.numel() == 1:
        return True
    return x.dim() in (2, 4) and weight.shape == (x.shape[1], *(1,) * (x.dim() - 2))


def _channels_last(x: Tensor) -> Tensor:
    """Contiguous, [N, H, W, C] of maps [N, C, H, W]."""
    return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).contiguous()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: str,
        settings: dict[str, Any],
    ) -> Tensor:
        """Of logits [N, C] or [N, H, W, C]."""
        total = rows.new_ones(2, dtype=torch.float32)
        each = reduction == "none"
        if each or rows.dim() == 2:
            terms, lse = _rows(rows.flatten(0, -2), target.flatten(), weight, settings)
        else:
            terms, lse = _pixels(rows.flatten(1, 2), target.flatten(1), weight, settings), None
        if not each:
            launch = choose(rows, kernels.loss_total, kernels.loss_total_reference)
            launch(terms, None, total, mean=reduction == "mean", share=1.0)
        ctx.save_for_backward(rows, target, weight, lse, total)
        ctx.each, ctx.settings = each, settings
        y = terms[:, 0].view_as(target) if each else total[0]
        return y.to(rows.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        rows, target, weight, lse, total = ctx.saved_tensors
        scale = torch.ones_like(total[:1]) if ctx.each else dy.float().reshape(1)
        dx = torch.empty_like(rows)
        launch = choose(
            rows, grad_kernels.cross_entropy_grad, grad_kernels.cross_entropy_grad_reference
        )
        operands = (rows.flatten(0, -2), target.flatten(), weight, lse, total, scale)
        launch(*operands, dx.flatten(0, -2), **ctx.settings)
        dx = dx * dy[..., None] if ctx.each else dx
        return dx, None, None, None, None


def _rows(
    rows: Tensor, target: Tensor, weight: Tensor | None, settings: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    terms, lse = (rows.new_empty(len(rows), *rest, dtype=torch.float32) for rest in ((2,), ()))
    launch = choose(rows, kernels.cross_entropy_rows, kernels.cross_entropy_rows_reference)
    launch(rows, target, weight, terms, lse, **settings)
    return terms, lse


def _pixels(
    maps: Tensor, target: Tensor, weight: Tensor | None, settings: dict[str, Any]
) -> Tensor:
    samples, pixels, classes = maps.shape
    splits = kernels.pixel_splits(pixels, classes)
    partials = maps.new_empty(samples, splits, 2, dtype=torch.float32)
    launch = choose(maps, kernels.cross_entropy_pixels, kernels.cross_entropy_pixels_reference)
    launch(maps, target, weight, partials, **settings)
    return partials


class _ElementLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None,
        pos_weight: Tensor | None,
        function: str,
        mean: bool,
    ) -> Tensor:
        """Of [N, C] or [N, H, W, C]."""
        splits = element_kernels.element_splits(x[:1].numel())
        partials, total = (
            x.new_empty(shape, dtype=torch.float32) for shape in ((len(x), splits, 2), (2,))
        )
        launch = choose(x, element_kernels.element_loss, element_kernels.element_loss_reference)
        launch(x, target, weight, pos_weight, partials, function=function)
        add = choose(x, kernels.loss_total, kernels.loss_total_reference)
        add(partials, None, total, mean=mean, share=1.0)
        ctx.save_for_backward(x, target, weight, pos_weight, total)
        ctx.function = function
        return total[0].to(x.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        dx = torch.empty_like(ctx.saved_tensors[0])
        launch = choose(
            dx, element_kernels.element_loss_grad, element_kernels.element_loss_grad_reference
        )
        launch(*ctx.saved_tensors, dy.float().reshape(1), dx, function=ctx.function)
        return dx, None, None, None, None, None
