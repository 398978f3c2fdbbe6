"""Copies of class labels into a training step, with a check of every label.

A label that is neither a class nor `ignore_index` sets a flag on the device. Updates of parameters,
of optimizer states and of running statistics read the flag and change nothing while it is set.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK: Final = 2048  # labels of a program
NUM_WARPS: Final = 4
MOST_SAMPLES: Final = tl.constexpr(2**31 - 1)  # samples of a batch, at most
LEAST_INT32, MOST_INT32 = tl.constexpr(-(2**31)), tl.constexpr(2**31 - 1)
LOW_BITS: Final = tl.constexpr(2**32 - 1)
# In the place of a sample and its label: a fault of another process that trains together with this
# one, and a process that does another step.
OTHERS: Final = tl.constexpr(1)
OTHER_STEPS: Final = tl.constexpr(2)


@triton.jit(do_not_specialize=["first", "classes", "ignore_index", "numel"])
def _stage_labels_kernel(
    labels_ptr, target_ptr, flag_ptr, step_ptr, record_ptr, numel, height, width,
    stride_n, stride_h, stride_w, first, classes, ignore_index, BLOCK: tl.constexpr,
):  # fmt: skip
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < numel
    row = offs // width
    sample = row // height
    ptrs = sample * stride_n + row % height * stride_h + offs % width * stride_w
    label = tl.load(labels_ptr + ptrs, mask=mask, other=0).to(tl.int64)
    if target_ptr is not None:
        tl.store(target_ptr + offs, label, mask=mask)
    is_class = (label >= 0) & (label < classes)
    wrong = mask & (is_class == 0) & (label != ignore_index)
    short = tl.minimum(tl.maximum(label, LEAST_INT32), MOST_INT32)
    key = ((MOST_SAMPLES - first - sample) << 32) | (short & LOW_BITS)
    largest = tl.max(tl.where(wrong, key, 0), 0)
    step = tl.load(step_ptr)
    known = tl.load(record_ptr + 1)
    if (largest > 0) & ((known == 0) | (known == step)):
        tl.store(flag_ptr, 1.0)
        tl.store(record_ptr + 1, step)
        tl.atomic_max(record_ptr, largest)


def stage_labels(
    labels: Tensor, target: Tensor | None, flag: Tensor, step: Tensor, record: Tensor, *,
    classes: int, ignore_index: int, first: int,
) -> None:  # fmt: skip
    """Copy labels [N] or [N, H, W], integers of any type and strides, to int64 target; check them.

    Without a target the labels are only checked. Where a label is neither in 0 to `classes` - 1 nor
    `ignore_index`, the float32 `flag` [1] becomes 1 and the int64 `record` [2] gets the step, the
    least such sample and its label, as `fault_of` reads them. Samples count from `first`. `step`
    int64 [1] is the number, above 0, of this step. The record of an earlier step stays.
    """
    if labels.numel() == 0:
        return
    maps = labels.view(torch.uint8) if labels.dtype == torch.bool else labels
    while maps.dim() < 3:
        maps = maps[:, None]
    _stage_labels_kernel[(triton.cdiv(maps.numel(), BLOCK),)](
        maps, target, flag, step, record, maps.numel(), *maps.shape[1:], *maps.stride(),
        first, classes, ignore_index, BLOCK=BLOCK, num_warps=NUM_WARPS,
    )  # fmt: skip


def fault_of(record: Tensor) -> tuple[int, int, int] | None:
    """The step, sample and label in a record on the CPU, or None where all labels were right.

    A label beyond 32 bits is given as the nearest int32. The sample is -OTHERS or -OTHER_STEPS for
    what processes that train together tell one another.
    """
    key, step = record.tolist()
    if not key:
        return None
    if key in (OTHERS.value, OTHER_STEPS.value):
        return step, -key, 0
    low = key & LOW_BITS.value
    label = low - 2**32 if low >= 2**31 else low
    return step, MOST_SAMPLES.value - (key >> 32), label


def stage_labels_reference(
    labels: Tensor, target: Tensor | None, flag: Tensor, step: Tensor, record: Tensor, *,
    classes: int, ignore_index: int, first: int,
) -> None:  # fmt: skip
    """Computes `stage_labels` in torch."""
    if target is not None:
        target.copy_(labels)
    if labels.numel() == 0:
        return
    target = labels.long()
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    samples = torch.arange(first, first + len(target), device=target.device)
    samples = samples.view(-1, *[1] * (target.dim() - 1))
    short = target.clamp(LEAST_INT32.value, MOST_INT32.value)
    keys = ((MOST_SAMPLES.value - samples) << 32) | (short & LOW_BITS.value)
    largest = keys.where(wrong, 0).max()
    raised = (largest > 0) & ((record[1] == 0) | (record[1] == step[0]))
    flag.copy_(torch.where(raised, torch.ones_like(flag), flag))
    key = torch.where(raised, torch.maximum(record[0], largest), record[0])
    record.copy_(torch.stack([key, torch.where(raised, step[0], record[1])]))
