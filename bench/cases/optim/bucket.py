"""Buckets of gradients, and the status of a step in all processes."""

import torch

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.optim.bucket import ALIGNMENT, bucket_offsets, check_status, pack


def tensors_for(size: Shape) -> Shape:
    """Elements of tensors of many lengths, more of them than share a launch."""
    return (3 * size[-1], 7 * size[-1] + 1, size[0] * size[-1], *(1,) * 9)


def _pack(
    o: Operands,
    size: Shape,
    numels: Shape = (),
    weighted: bool = True,
    alignment: int = ALIGNMENT,
    dtype: torch.dtype = F32,
    source: torch.dtype = F32,
) -> Launch:
    numels = numels or tensors_for(size)
    sources = [o.randn(numel, dtype=source) for numel in numels]
    bucket = o.updated(o.full(0.0, bucket_offsets(numels, alignment)[-1], dtype=dtype))
    words = {"weight": o.full(3.0, 1), "total": o.full(7.0, 1)} if weighted else {}
    return launching(pack, sources, bucket, **words, alignment=alignment)


def _check_status(o: Operands, size: Shape, fault: float = 0.0, other: float = 0.0) -> Launch:
    own = o.full(3.0, 5)
    status = o.full(12.0, 6)
    status[1] += other
    status[5] = fault
    flag, scale = o.updated(o.full(0.0, 1)), o.updated(o.full(0.5, 1))
    words = o.updated(o.full(0, 3, dtype=torch.int64))
    return launching(check_status, status, own, flag, scale, words[:1], words[1:], processes=4)


IN_BF16 = {"bf16": {"dtype": BF16}, "of bf16": {"source": BF16, "weighted": False}}
CASES = (
    KernelCase(
        pack,
        _pack,
        {
            "": {},
            "unweighted": {"weighted": False},
            "dense": {"alignment": 1},
            "bf16": {"dtype": BF16},
        },
        [
            At((), {"numels": (64, 1000, 1 << 22)}),
            At((), {"numels": (64, 1000, 1 << 22), "dtype": BF16}),
            At((), {"numels": (1 << 22,), "source": BF16, "weighted": False, "alignment": 1}),
            At((), {"numels": (1, 1), "alignment": 1}),
        ],
    ),
    KernelCase(
        check_status,
        _check_status,
        {"": {}, "fault": {"fault": 0.5}, "other step": {"other": 1.0}},
        [At(())],
    ),
)
