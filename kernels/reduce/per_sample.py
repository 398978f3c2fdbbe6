"""Running sums over a batch of the per-sample sums from which parameters' gradients are made.

A pass stores sums [N, chunks, kinds, columns], for example of weight and bias. A split of the
running sums adds the same chunks of every sample. Groups of samples are summed first. The bits do
not depend on where launches cut the batch, as long as they cut between groups.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

GROUP: Final = 16  # samples that are summed before they are added to a running sum
MOST_SPLITS: Final = 16
BLOCK: Final = 64  # columns of a program


def sample_splits(chunks: int) -> int:
    """Number of splits of the running sums for samples of `chunks` chunks."""
    return min(chunks, MOST_SPLITS)


@triton.jit(do_not_specialize=["num_samples", "chunks", "first"])
def _add_sums_kernel(
    sums_ptr, running_ptr, num_samples, chunks, kinds, columns, first,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    split, splits = tl.program_id(1), tl.num_programs(1)
    share = tl.cdiv(chunks, splits)
    stop = tl.minimum((split + 1) * share, chunks)
    running_ptrs = running_ptr + split.to(tl.int64) * columns + offs
    acc = tl.load(running_ptrs, mask=(offs < columns) & (first == 0), other=0.0)
    for start in range(0, num_samples, GROUP):
        sample = start + tl.arange(0, GROUP)[:, None]
        mask = (sample < num_samples) & (offs < columns)[None, :]
        ptrs = sums_ptr + sample.to(tl.int64) * chunks * kinds * columns + offs[None, :]
        for chunk in range(split * share, stop):
            tile = tl.load(ptrs + chunk * kinds * columns, mask=mask, other=0.0)
            acc += tl.sum(tile, 0)
    tl.store(running_ptrs, acc, mask=offs < columns)


def add_sample_sums(sums: Tensor, running: Tensor, *, kind: int, first: bool) -> None:
    """Add the sums of one kind of N samples to running sums, float32 [splits, columns].

    sums are contiguous float32 [N, chunks, kinds, columns]. `first` starts new running sums. Every
    other launch must start at a multiple of GROUP samples of the batch.
    """
    num_samples, chunks, kinds, columns = sums.shape
    if sums.numel() == 0:
        return
    _add_sums_kernel[(triton.cdiv(columns, BLOCK), running.shape[0])](
        sums[:, :, kind], running, num_samples, chunks, kinds, columns, int(first),
        GROUP=GROUP, BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip


def add_sample_sums_reference(sums: Tensor, running: Tensor, *, kind: int, first: bool) -> None:
    """Computes `add_sample_sums` in torch."""
    if first:
        running.zero_()
    share = triton.cdiv(sums.shape[1], running.shape[0])
    for group in sums[:, :, kind].split(GROUP):
        for split, chunks in enumerate(group.split(share, 1)):
            running[split] += chunks.sum((0, 1))
