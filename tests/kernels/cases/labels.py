"""Launches of labels.py to compile."""

import torch

from tests.support.offline import Case
from tvdnn.kernels.copy.labels import stage_labels


def _stage() -> None:
    flag = torch.empty(1, device="meta")
    words = torch.empty(3, dtype=torch.int64, device="meta")
    settings = {"classes": 1000, "ignore_index": -100, "first": 0}
    for labels in (
        torch.empty(256, dtype=torch.int64, device="meta"),
        torch.empty(4, 65, 31, dtype=torch.uint8, device="meta").transpose(1, 2),
    ):
        target = torch.empty(labels.shape, dtype=torch.int64, device="meta")
        for into in (target, None):
            stage_labels(labels, into, flag, words[:1], words[1:], **settings)


CASES = [Case("stage labels", _stage)]
