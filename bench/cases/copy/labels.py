"""Labels that the caller gives, checked and copied."""

import torch

from bench.cases.case import At, KernelCase, checked
from bench.cases.launch import Launch, launching
from bench.cases.operands import U8, Operands, Shape
from tvdnn.kernels.copy.labels import stage_labels

LABELS = {"classes": 1000, "ignore_index": -100, "first": 0}


def _stage(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = torch.int64,
    transposed: bool = False,
    copied: bool = True,
    high: int = 200,
) -> Launch:
    """Labels below `high`; without `copied` they are only checked."""
    labels = o.integers(high, *size[:-1], dtype=dtype)
    labels = labels.transpose(1, 2) if transposed else labels
    target = o.out(*labels.shape, dtype=torch.int64) if copied else None
    flag = o.updated(o.full(0, 1))
    words = o.updated(o.full(1, 3, dtype=torch.int64))
    return launching(stage_labels, labels, target, flag, words[:1], words[1:], **LABELS)


COPIED = (True, False)
CASES = (
    KernelCase(
        stage_labels,
        _stage,
        checked(copied=COPIED) | {"wrong": {"high": 2000}},
        (
            *(At((256, 1), {"copied": each}) for each in COPIED),
            *(
                At((4, 65, 31, 1), {"dtype": U8, "transposed": True, "copied": each})
                for each in COPIED
            ),
        ),
    ),
)
