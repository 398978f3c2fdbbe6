"""Launches of loss.py to compile."""

from functools import partial

import torch

from tests.offline import Case
from tvdnn.kernels import loss


def _cross_entropy(classes: int) -> None:
    logits = torch.empty(256, classes, dtype=torch.bfloat16, device="meta")
    target = torch.empty(256, dtype=torch.int64, device="meta")
    losses = torch.empty(256, device="meta")
    total = torch.empty(2, device="meta")
    options = {"reduction": "mean", "ignore_index": -100}
    loss.cross_entropy_rows(logits, target, losses, losses, ignore_index=-100)
    loss.cross_entropy_total(losses, target, total, **options)
    loss.cross_entropy_grad(logits, target, losses, total, total, logits, **options)


CASES = [
    Case("cross-entropy", partial(_cross_entropy, 1000)),
    Case("cross-entropy of a vocabulary", partial(_cross_entropy, 50257)),
]
