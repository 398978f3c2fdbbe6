"""The least work of a launch: floating-point operations of products, and bytes read and written.

By default a launch reads or writes each operand once. Another launcher has a cost function, which
takes the launcher's arguments. Every rate and every roofline is computed from these functions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

_Launcher = TypeVar("_Launcher", bound=Callable[..., None])


class Cost(NamedTuple):
    """Floating-point operations of products, two for a multiply-add, and bytes moved."""

    flops: float
    nbytes: float


def costing(cost: Callable[..., Cost]) -> Callable[[_Launcher], _Launcher]:
    """A decorator that attaches a cost function to a launcher. The launcher stays as it is."""

    def attach(launcher: _Launcher) -> _Launcher:
        launcher.__dict__["cost"] = cost
        return launcher

    return attach


def cost_of(launcher: Callable[..., None], *operands: Any, **settings: Any) -> Cost:
    """The cost of a launch with these arguments. Tensors may be on the meta device."""
    cost: Callable[..., Cost] = launcher.__dict__.get("cost", moves_operands)
    return cost(*operands, **settings)


def moves_operands(*operands: Any, **settings: Any) -> Cost:
    """The cost of a launch that reads or writes every tensor among its arguments once."""
    return Cost(0.0, moved(operands, settings))


def updates(*positions: int) -> Callable[..., Cost]:
    """A cost function as `moves_operands` that counts the operands at these positions twice.

    These operands are both read and written.
    """

    def cost(*operands: Any, **settings: Any) -> Cost:
        return Cost(0.0, moved(operands, settings, [operands[each] for each in positions]))

    return cost


def moved(*operands: Any) -> float:
    """Bytes of all tensors in the operands. Axes of stride 0 hold one element."""
    return float(sum(_nbytes(each) for each in _tensors(operands)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors([*value.values()])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _tensors(each)


def _nbytes(tensor: Tensor) -> int:
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(size for size, stride in sides if stride) * tensor.element_size()
