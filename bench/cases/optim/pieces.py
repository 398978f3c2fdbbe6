"""Buckets that have a piece of each tensor for every process."""

import torch

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from bench.cases.optim.bucket import tensors_for
from tvdnn.kernels.optim.pieces import pack_pieces, piece_offsets, unpack_pieces

PROCESSES = 3


def _pack_pieces(
    o: Operands,
    size: Shape,
    numels: Shape = (),
    dtype: torch.dtype = F32,
    processes: int = PROCESSES,
    process: int | None = None,
) -> Launch:
    numels = numels or tensors_for(size)
    tensors = [o.randn(numel) for numel in numels]
    bucket = o.full(0.0, processes * piece_offsets(numels, processes)[-1], dtype=dtype)
    return launching(pack_pieces, tensors, o.updated(bucket), processes=processes, process=process)


def _unpack_pieces(
    o: Operands, size: Shape, numels: Shape = (), processes: int = PROCESSES
) -> Launch:
    numels = numels or tensors_for(size)
    bucket = o.randn(processes * piece_offsets(numels, processes)[-1])
    tensors = [o.updated(o.full(0.0, numel)) for numel in numels]
    return launching(unpack_pieces, bucket, tensors, processes=processes)


LARGE = {"numels": (64, 1000, 1 << 22), "processes": 8}
CASES = (
    KernelCase(
        pack_pieces,
        _pack_pieces,
        {"": {}, "one": {"process": 1}, "last": {"process": 2}, "bf16": {"dtype": BF16}},
        [At((), LARGE), At((), LARGE | {"process": 3}), At((), LARGE | {"dtype": BF16})],
    ),
    KernelCase(unpack_pieces, _unpack_pieces, {"": {}}, [At((), LARGE)]),
)
