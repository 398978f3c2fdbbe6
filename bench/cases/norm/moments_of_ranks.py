"""Statistics of batch normalization over processes that train together."""

import torch

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import Operands, Shape
from tvdnn.kernels.norm.moments_of_ranks import MOMENTS, merge_slots, own_slot

WORLD, RANK, EPS = 5, 2, 1e-5


def _own_slot(o: Operands, size: Shape, rows: int = 37) -> Launch:
    statistics, slots = o.randn(3, size[-1]).abs_(), o.out(WORLD, MOMENTS, size[-1])
    return launching(own_slot, statistics, slots, rank=RANK, rows=rows)


def _merge_slots(
    o: Operands,
    size: Shape,
    momentum: float | None = 0.1,
    running: bool = True,
    flagged: bool = False,
) -> Launch:
    channels = size[-1]
    slots = o.randn(WORLD, MOMENTS, channels).abs_()
    slots[:, 0] = torch.arange(3.0, 3.0 + WORLD, device=slots.device)[:, None]
    kept: list[torch.Tensor | None] = [None, None, None]
    if running:
        kept = [o.updated(o.randn(channels).abs_()) for _ in range(2)]
        kept.append(o.updated(o.full(1, 1, dtype=torch.int64)))
    flag = {"flag": o.full(1.0, 1)} if flagged else {}
    outputs = o.out(3, channels), o.out(2)
    settings = {"rank": RANK, "momentum": momentum, "eps": EPS}
    return launching(merge_slots, slots, *outputs, *kept, **settings, **flag)


CASES = (
    KernelCase(own_slot, _own_slot, {"": {}, "one row": {"rows": 1}}, [At((2, 5, 5, 100))]),
    KernelCase(
        merge_slots,
        _merge_slots,
        {
            "": {},
            "untracked": {"running": False},
            "flagged": {"flagged": True},
            "mean of batches": {"momentum": None},
        },
        [At((2, 5, 5, 100))],
    ),
)
