"""Constants that a forward makes anew: whether a step would make the same ones again."""

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .recorded_call import RecordedCall


def bits_of(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's elements, in order: uint8 [N]."""
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one type have the same shape and bits."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(bits_of(first), bits_of(second))


def are_held(
    constants: Sequence[Tensor], calls: Iterable[RecordedCall], kept: Iterable[Sequence[Any]]
) -> bool:
    """Whether anything but `calls` and the sequences `kept` holds a constant, as a cache does.

    A later forward could find it there, and write it. References are counted: Python's search for
    cycles, which would name the holders, leaves out objects that were frozen.
    """
    parts = [part for c in calls for part in (c.given, c.made, c.written, c.formed)]
    own = {id(each): each for each in (*parts, *kept, constants)}.values()
    known = Counter(id(each) for sequence in own for each in sequence)
    unique = list({id(each): each for each in constants}.values())
    if all(_has_no_more(unique, known)):
        return False
    gc.collect()  # of objects that refer to one another
    return not all(_has_no_more(unique, known))


def _has_no_more(tensors: Sequence[Tensor], known: Counter[int]) -> list[bool]:
    """Of each tensor whether it has no more references than are known, and that of `tensors`."""
    (beside,) = _counts([object()])  # of a list, and of the counting itself
    refers = _torch_refers()
    return [
        count - beside <= known[id(each)] + (refers and each._use_count() > 1)
        for count, each in zip(_counts(tensors), tensors, strict=True)
    ]


def _torch_refers() -> bool:
    """Whether torch itself holds the Python object of a tensor that a view or a graph holds.

    Torch 2.15 does.
    """
    tensor = torch.empty(1)
    (before,) = _counts([tensor])
    view = tensor[:]
    (after,) = _counts([tensor])
    return view.dim() == 1 and after > before


def _counts(objects: Sequence[object]) -> list[int]:
    return [sys.getrefcount(each) for each in objects]
