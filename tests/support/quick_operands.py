"""Spares Triton's interpreter (3.6 to 3.9) judgements of operands that it has made before.

As shipped, every operation looks up the type in which it computes, casts both operands, makes a
block of a number, and finds the shape of the result. All that depends on the types alone, and on
the number. `install` replaces the methods concerned by others that ask the stock ones once, keep
the types of the operands as those left them, and go straight to these types from then on.
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


class Way(NamedTuple):
    """How a tensor of a type becomes an operand."""

    kind: tl.dtype  # its type as an operand
    cast: tl.dtype | None  # its elements' type, if that is another
    sizes: list[int] | None  # its shape, if that is another


PAIRS: Final[dict[Any, tuple[Way, Way]]] = {}  # by the types of two tensors
NUMBERS: Final[dict[Any, tuple[Way, tl.tensor]]] = {}  # by a tensor's type and the number beside it


def way(before: tl.tensor, after: tl.tensor) -> Way:
    """The way that the stock methods went."""
    kind = after.type
    same = before.dtype == after.dtype
    sizes = kind.shape.values if kind.is_block() else None
    if before.type.is_block() and before.type.shape.values == sizes:
        sizes = None
    return Way(kind, None if same else kind.scalar, sizes)


def gone(semantic: TritonSemantic[Any], value: tl.tensor, way: Way) -> tl.tensor:
    """A tensor as an operand."""
    if way.cast is not None:
        value = semantic.cast(value, way.cast)
    if way.sizes is None:
        return value
    data = value.handle.data
    dtype = data.dtype if value.type.is_block() else interpreter._get_np_dtype(value.dtype)
    whole = np.empty(way.sizes, dtype)
    whole[...] = data
    return tl.tensor(Handle(whole, value.dtype), way.kind)


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
            ways = PAIRS.get(key)
            if ways is not None:
                return gone(self, lhs, ways[0]), gone(self, rhs, ways[1])
            made = STOCK_OPERANDS(self, lhs, rhs, *rules)
            PAIRS[key] = way(lhs, made[0]), way(rhs, made[1])
            return made
        if isinstance(rhs, int | float):
            return _beside_number(self, lhs, rhs, rules, number_first=False)
    elif type(rhs) is tl.tensor and isinstance(lhs, int | float):
        operand, number = _beside_number(self, rhs, lhs, rules, number_first=True)
        return number, operand
    return STOCK_OPERANDS(self, lhs, rhs, *rules)


def _beside_number(
    self: TritonSemantic[Any], tensor: tl.tensor, number: Any, rules: Any, *, number_first: bool
) -> tuple[tl.tensor, tl.tensor]:
    """The tensor and the number, in this order, as operands."""
    key = (tensor.type.name, number or repr(number), type(number), number_first, rules)
    known = NUMBERS.get(key)
    if known is not None:
        return gone(self, tensor, known[0]), known[1]
    if number_first:
        made, operand = STOCK_OPERANDS(self, number, tensor, *rules)
    else:
        operand, made = STOCK_OPERANDS(self, tensor, number, *rules)
    if made.numel.value <= KEPT_NUMEL and number == number:  # NaN is never found
        if len(NUMBERS) == KEPT_NUMBERS:
            NUMBERS.clear()
        made.handle.data.setflags(write=False)
        NUMBERS[key] = way(tensor, operand), made
    return operand, made


def _broadcast(self: TritonSemantic[Any], lhs: tl.tensor, rhs: tl.tensor) -> Any:
    """Tensors of one shape as they are."""
    left, right = lhs.type, rhs.type
    blocks = left.is_block() and right.is_block()
    if left is right or (blocks and left.shape.values == right.shape.values):
        return lhs, rhs
    key = left.name, right.name
    ways = PAIRS.get(key)
    if ways is not None:
        return gone(self, lhs, ways[0]), gone(self, rhs, ways[1])
    made = STOCK_BROADCAST(self, lhs, rhs)
    PAIRS[key] = way(lhs, made[0]), way(rhs, made[1])
    return made


def install() -> None:
    """Put the quick methods in place; calling it again changes nothing."""
    TritonSemantic.binary_op_type_checking_impl = _operands
    TritonSemantic.broadcast_impl_value = _broadcast
