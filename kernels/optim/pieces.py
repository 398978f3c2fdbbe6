"""Copies between tensors and a bucket that has a piece of each for every process.

Processes that share the optimizer's state update a piece of each parameter (ZeRO stage 1:
Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC
2020). The piece of process p is elements [p * n, (p + 1) * n) of the tensor as it lies in memory; n
is `piece_numel`, and at the end of a tensor pieces are shorter, or empty. A bucket has the first
pieces of all its tensors one behind the other, then the second ones, and so on: what one process
updates is one range.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

ALIGNMENT: Final = 4  # elements of float32: 16 bytes
BLOCK: Final = 2048  # elements of a program
NUM_WARPS: Final = 8
TENSORS: Final = 8  # tensors that share a launch, at most


def piece_numel(numel: int, processes: int) -> int:
    """Elements of the piece of a tensor that each of so many processes has."""
    return -(-numel // (processes * ALIGNMENT)) * ALIGNMENT


def piece_offsets(numels: Sequence[int], processes: int) -> tuple[int, ...]:
    """Where pieces of tensors begin in a process's range of a bucket, and behind them its end."""
    return tuple(accumulate((piece_numel(each, processes) for each in numels), initial=0))


@triton.jit(do_not_specialize=["sizes", "pieces", "starts", "stride", "first"])
def _pieces_kernel(
    tensor_ptrs, sizes, pieces, starts, bucket_ptr, stride, first,
    PACKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The second grid axis is the tensor's index in the tuples, the third one the process's."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    process = tl.program_id(2).to(tl.int64) + first
    for i in tl.static_range(len(tensor_ptrs)):
        if tl.program_id(1) == i:
            at = process * pieces[i] + offs
            mask = (offs < pieces[i]) & (at < sizes[i])
            place = bucket_ptr + process * stride + starts[i] + offs
            if PACKS:
                tl.store(place, tl.load(tensor_ptrs[i] + at, mask=mask), mask=mask)
            else:
                tl.store(tensor_ptrs[i] + at, tl.load(place, mask=mask), mask=mask)


def pack_pieces(
    tensors: Sequence[Tensor], bucket: Tensor, *, processes: int, process: int | None = None
) -> None:
    """Copy contiguous tensors into a flat bucket: all pieces, or those of one process.

    All are float32 or bfloat16. What lies behind short pieces is left as it is.
    """
    _launch(tensors, bucket, processes, process, packs=True)


def unpack_pieces(bucket: Tensor, tensors: Sequence[Tensor], *, processes: int) -> None:
    """Copy the pieces of contiguous tensors out of a flat bucket. All are float32 or bfloat16."""
    _launch(tensors, bucket, processes, None, packs=False)


def _launch(
    tensors: Sequence[Tensor], bucket: Tensor, processes: int, process: int | None, *, packs: bool
) -> None:
    sizes = [tensor.numel() for tensor in tensors]
    pieces = [piece_numel(size, processes) for size in sizes]
    *starts, stride = piece_offsets(sizes, processes)
    first, count = (0, processes) if process is None else (process, 1)
    for begin in range(0, len(sizes), TENSORS):
        part = slice(begin, begin + TENSORS)
        grid = (triton.cdiv(max(pieces[part]), BLOCK), len(sizes[part]), count)
        _pieces_kernel[grid](
            tuple(tensors[part]), tuple(sizes[part]), tuple(pieces[part]), tuple(starts[part]),
            bucket, stride, first, PACKS=packs, BLOCK=BLOCK, num_warps=NUM_WARPS,
        )  # fmt: skip


def pack_pieces_reference(
    tensors: Sequence[Tensor], bucket: Tensor, *, processes: int, process: int | None = None
) -> None:
    """Computes `pack_pieces` in torch."""
    for number in range(processes) if process is None else (process,):
        for own, place in _pairs(tensors, bucket, processes, number):
            place.copy_(own)


def unpack_pieces_reference(bucket: Tensor, tensors: Sequence[Tensor], *, processes: int) -> None:
    """Computes `unpack_pieces` in torch."""
    for number in range(processes):
        for own, place in _pairs(tensors, bucket, processes, number):
            own.copy_(place)


def _pairs(
    tensors: Sequence[Tensor], bucket: Tensor, processes: int, process: int
) -> list[tuple[Tensor, Tensor]]:
    """A process's piece of each tensor, and its place in the bucket."""
    *starts, stride = piece_offsets([each.numel() for each in tensors], processes)
    pairs = []
    for tensor, start in zip(tensors, starts, strict=True):
        own = piece_of(tensor, processes, process)
        begin = process * stride + start
        pairs.append((own, bucket[begin : begin + own.numel()]))
    return pairs


def piece_of(tensor: Tensor, processes: int, process: int) -> Tensor:
    """A process's piece of a dense tensor: a view, one-dimensional, without elements at times."""
    size, numel = tensor.numel(), piece_numel(tensor.numel(), processes)
    first = min(size, process * numel)
    flat = tensor.as_strided((size,), (1,))
    return flat[first : min(size, first + numel)]


def heads_of(pieces: Sequence[Tensor | None], own: Sequence[Tensor]) -> list[Tensor | None]:
    """Of each piece of state that there is, as many elements as the parameter's own piece has."""
    return [
        None if piece is None else piece.as_strided((of.numel(),), (1,))
        for piece, of in zip(pieces, own, strict=True)
    ]
