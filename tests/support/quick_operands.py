"""Spares Triton's interpreter (3.6 to 3.9) judgements of operands that it has made before.

As shipped, every operation looks up the type in which it computes, casts both operands, makes a
block of a number, and finds the shape of the result. All that depends on the types alone, and on the
number. `install` replaces the methods concerned by others that ask the stock ones once, keep the
types of the operands as they left them, and go straight to those types from then on.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

Handle = interpreter.TensorHandle

KEPT_NUMBERS: Final = 2048  # blocks of a number, of at most as many elements as the next line says
KEPT_NUMEL: Final = 4096

STOCK_OPERANDS: Final = TritonSemantic.binary_op_type_checking_impl
STOCK_BROADCAST: Final = TritonSemantic.broadcast_impl_value


class Number(NamedTuple):
    """A number beside a tensor: the type to which the tensor goes, and the number as one."""

    kind: tl.dtype
    number: tl.tensor


PAIRS: Final[dict[Any, tuple[tl.dtype, tl.dtype]]] = {}  # types of two tensors, before and after
NUMBERS: Final[dict[Any, Number]] = {}


def moved(semantic: TritonSemantic[Any], value: tl.tensor, kind: tl.dtype) -> tl.tensor:
    """A tensor in a type of the same or more axes, as the stock cast and broadcast leave it."""
    if value.type is kind:
        return value
    if value.dtype is not kind.scalar and value.dtype != kind.scalar:
        value = semantic.cast(value, kind.scalar)
    if not kind.is_block():
        return value
    source, sizes = value.type, kind.shape.values
    data = value.handle.data
    if source.is_block():
        if source.shape.values == sizes:
            return value
        whole = np.empty(sizes, data.dtype)
    else:
        whole = np.empty(sizes, interpreter._get_np_dtype(value.dtype))
    whole[...] = data
    return tl.tensor(Handle(whole, kind.scalar), kind)


def _operands(
    self: TritonSemantic[Any],
    lhs: Any,
    rhs: Any,
    allow_lhs_ptr: bool = False,
    allow_rhs_ptr: bool = False,
    arithmetic_check: bool = True,
    div_or_mod: bool = False,
) -> tuple[tl.tensor, tl.tensor]:
    """Tensors of one type as they are, but pointers, and for division, which has other types."""
    rules = (allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
    if type(lhs) is tl.tensor:
        left = lhs.type
        if type(rhs) is tl.tensor:
            right = rhs.type
            if left is right and not (div_or_mod or lhs.dtype.is_ptr()):
                return lhs, rhs
            key = (left.name, right.name, rules)
            kinds = PAIRS.get(key)
            if kinds is not None:
                return moved(self, lhs, kinds[0]), moved(self, rhs, kinds[1])
            lhs, rhs = STOCK_OPERANDS(self, lhs, rhs, *rules)
            PAIRS[key] = lhs.type, rhs.type
            return lhs, rhs
        if isinstance(rhs, int | float):
            return _beside_number(self, lhs, rhs, rules, number_first=False)
    elif type(rhs) is tl.tensor and isinstance(lhs, int | float):
        number, tensor = _beside_number(self, rhs, lhs, rules, number_first=True)[::-1]
        return number, tensor
    return STOCK_OPERANDS(self, lhs, rhs, *rules)


def _beside_number(
    self: TritonSemantic[Any], tensor: tl.tensor, number: Any, rules: Any, *, number_first: bool
) -> tuple[tl.tensor, tl.tensor]:
    """The tensor and the number, in this order, as operands."""
    key = (tensor.type.name, number or repr(number), type(number), number_first, rules)
    known = NUMBERS.get(key)
    if known is not None:
        return moved(self, tensor, known.kind), known.number
    if number_first:
        made, tensor = STOCK_OPERANDS(self, number, tensor, *rules)
    else:
        tensor, made = STOCK_OPERANDS(self, tensor, number, *rules)
    if made.numel.value <= KEPT_NUMEL and number == number:  # NaN is never found
        if len(NUMBERS) == KEPT_NUMBERS:
            NUMBERS.clear()
        made.handle.data.setflags(write=False)
        NUMBERS[key] = Number(tensor.type, made)
    return tensor, made


def _broadcast(self: TritonSemantic[Any], lhs: tl.tensor, rhs: tl.tensor) -> Any:
    """Tensors of one shape as they are."""
    left, right = lhs.type, rhs.type
    blocks = left.is_block() and right.is_block()
    if left is right or (blocks and left.shape.values == right.shape.values):
        return lhs, rhs
    key = left.name, right.name
    kinds = PAIRS.get(key)
    if kinds is not None:
        return moved(self, lhs, kinds[0]), moved(self, rhs, kinds[1])
    lhs, rhs = STOCK_BROADCAST(self, lhs, rhs)
    PAIRS[key] = lhs.type, rhs.type
    return lhs, rhs


def install() -> None:
    """Put the quick methods in place; calling it again changes nothing."""
    TritonSemantic.binary_op_type_checking_impl = _operands
    TritonSemantic.broadcast_impl_value = _broadcast
