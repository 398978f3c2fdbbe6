"""The least that a launch must do: its operations, and the bytes that it reads and writes.

A launcher whose launches do more than move each operand once has a function of the launcher's own
arguments that says so. Measurements and their roofline read it, and nothing else prices a launch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

_Launcher = TypeVar("_Launcher", bound=Callable[..., None])


class Cost(NamedTuple):
    """Operations of products, two to a multiply-add, and bytes moved."""

    flops: float
    nbytes: float


def costing(cost: Callable[..., Cost]) -> Callable[[_Launcher], _Launcher]:
    """A decorator that gives a launcher its cost. The launcher itself stays as it is."""

    def attach(launcher: _Launcher) -> _Launcher:
        launcher.__dict__["cost"] = cost
        return launcher

    return attach


def cost_of(launcher: Callable[..., None], *operands: Any, **settings: Any) -> Cost:
    """The cost of a launch with these arguments, whose tensors may be of the meta device."""
    cost: Callable[..., Cost] = launcher.__dict__.get("cost", moves_operands)
    return cost(*operands, **settings)


def moves_operands(*operands: Any, **settings: Any) -> Cost:
    """Every tensor among the arguments is read or written once."""
    return Cost(0.0, moved(operands, settings))


def updates(*positions: int) -> Callable[..., Cost]:
    """As `moves_operands`, but the operands at these positions are both read and written."""

    def cost(*operands: Any, **settings: Any) -> Cost:
        return Cost(0.0, moved(operands, settings, [operands[each] for each in positions]))

    return cost


def moved(*operands: Any) -> float:
    """Bytes of all tensors in the operands. An expanded tensor counts what its memory holds."""
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
