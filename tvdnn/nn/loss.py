"""Softmax cross-entropy over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels import loss as kernels
from .maps import apply, checked, choose, shape_only, torchs_own


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss, run by tvdnn's kernels on logits [N, C] and class indices [N].

    With class weights, label smoothing, class probabilities or more dimensions it is torch's own.
    """

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        smoothed = self.weight is not None or self.label_smoothing != 0
        if smoothed or logits.dim() != 2 or target.dim() != 1:
            return super().forward(logits, target)
        return cross_entropy(
            logits, target, ignore_index=self.ignore_index, reduction=self.reduction
        )


def cross_entropy(
    logits: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """torch.nn.functional.cross_entropy of logits [N, C] and class indices [N]."""
    settings = {"ignore_index": ignore_index, "reduction": reduction}
    operands = (logits, target)
    if torchs_own(*operands):
        return functional.cross_entropy(*operands, ignore_index=ignore_index, reduction=reduction)
    functional.cross_entropy(shape_only(logits), shape_only(target), reduction=reduction)
    return apply(_CrossEntropy, checked(logits).contiguous(), target.contiguous(), settings)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, settings: dict[str, Any]) -> Tensor:
        losses, lse = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
        total = logits.new_ones(2, dtype=torch.float32)
        rows = choose(logits, kernels.cross_entropy_rows, kernels.cross_entropy_rows_reference)
        rows(logits, target, losses, lse, ignore_index=settings["ignore_index"])
        if settings["reduction"] != "none":
            add = choose(logits, kernels.cross_entropy_total, kernels.cross_entropy_total_reference)
            add(losses, target, total, **settings)
        ctx.save_for_backward(logits, target, lse, total)
        ctx.settings = settings
        return (losses if settings["reduction"] == "none" else total[0].clone()).to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        logits, target, lse, total = ctx.saved_tensors
        per_sample = ctx.settings["reduction"] == "none"
        scale = torch.ones_like(total[:1]) if per_sample else dy.float().reshape(1)
        settings = ctx.settings | {"reduction": "sum"} if per_sample else ctx.settings
        dlogits = torch.empty_like(logits)
        launch = choose(logits, kernels.cross_entropy_grad, kernels.cross_entropy_grad_reference)
        launch(logits, target, lse, total, scale, dlogits, **settings)
        return dlogits * dy[:, None] if per_sample else dlogits, None, None
