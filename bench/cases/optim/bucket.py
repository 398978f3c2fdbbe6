"""Buckets of gradients, and the verdict of all processes on a step."""

import torch

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.optim.bucket import ALIGNMENT, bucket_offsets, hear, pack


def _pack(
    o: Operands,
    size: Shape,
    numels: Shape = (),
    weighted: bool = True,
    alignment: int = ALIGNMENT,
    dtype: torch.dtype = F32,
) -> Launch:
    numels = numels or (3 * size[-1], 7 * size[-1] + 1, size[0] * size[-1], *(1,) * 9)
    sources = [o.randn(numel) for numel in numels]
    bucket = o.updated(o.full(0.0, bucket_offsets(numels, alignment)[-1], dtype=dtype))
    words = {"weight": o.full(3.0, 1), "total": o.full(7.0, 1)} if weighted else {}
    return launching(pack, sources, bucket, **words, alignment=alignment)


def _hear(o: Operands, size: Shape, told: float = 0.5) -> Launch:
    flag, loss = o.updated(o.full(0.0, 1)), o.updated(o.full(0.0, 2))
    words = o.updated(o.full(0, 3, dtype=torch.int64))
    return launching(hear, o.full(told, 2), flag, words[:1], words[1:], loss)


IN_BF16 = {"bf16": {"dtype": BF16}}
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
            At((), {"numels": (1, 1), "alignment": 1}),
        ],
    ),
    KernelCase(hear, _hear, {"": {}, "nothing": {"told": 0.0}}, [At(())]),
)
