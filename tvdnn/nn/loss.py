"""Losses over the kernels: cross-entropy of rows and pixels, binary cross-entropy, squares."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..kernels.loss.cross_entropy import MOST_CLASSES, with_sum
from .eager import checked, run, torchs_own
from .layouts import CHANNELS_LAST, LOSS_OF_EACH, TOTAL
from .shapes import shape_only


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss, run by tvdnn's kernels.

    It is torch's own where targets are probabilities, on logits neither [N, C] nor [N, C, H, W],
    and of no rows or pixels.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        crowded = input.dim() == 4 and input.shape[1] > MOST_CLASSES
        refused = target.is_floating_point() or input.dim() not in (2, 4) or input.numel() == 0
        if torchs_own(input, target) or crowded or refused:
            return super().forward(input, target)
        functional.cross_entropy(shape_only(input), shape_only(target), reduction=self.reduction)
        target = target.contiguous()
        each = self.reduction == "none"
        settings = {
            "ignore_index": self.ignore_index,
            "smoothing": self.label_smoothing,
            "mean": self.reduction == "mean",
            "share": 1.0,
        }
        return run(
            "cross_entropy",
            checked(input),
            attrs=settings,
            layout=LOSS_OF_EACH if each else TOTAL,
            state=(None if self.weight is None else with_sum(self.weight),),
            target=target.flatten() if each else target,
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
        state = [None if each is None else each.float().flatten() for each in weights]
        return element_loss("bce_with_logits", input, target, self.reduction, state)


class MSELoss(torch.nn.MSELoss):
    """torch.nn.MSELoss, run by tvdnn's kernels.

    It is torch's own per element, where the target requires a gradient or does not broadcast to the
    input's shape, and of an input that has no dimension or no element.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "none" or _is_torchs(input, target):
            return super().forward(input, target)
        return element_loss("mse", input, target, self.reduction, (None, None))


def element_loss(
    kind: str, x: Tensor, target: Tensor, reduction: str, state: Sequence[Tensor | None]
) -> Tensor:
    """The "mean" or "sum" of the loss of elements of this kind, with its weights."""
    functional.mse_loss(shape_only(x), shape_only(target), reduction=reduction)
    target = target.expand_as(x).float()
    x, target = (x[:, None], target[:, None]) if x.dim() == 1 else (x, target)
    attrs = {"mean": reduction == "mean", "share": 1.0}
    target = CHANNELS_LAST.enter(target)
    return run(kind, checked(x), attrs=attrs, layout=TOTAL, state=state, target=target)


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
