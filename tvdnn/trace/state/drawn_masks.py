"""Masks that a forward draws by torch's functions: a number for each sample, or zero.

Stochastic depth is written so by hand in many networks:

    mask = torch.floor(keep + torch.rand(len(x), 1, 1, 1, device=x.device))
    mask = x.new_empty(len(x), 1, 1, 1).bernoulli_(keep).div_(keep)
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any, Final

import torch
from torch import Tensor

from .recorded_call import RecordedCall


@dataclass(frozen=True, slots=True)
class Drawn:
    """A tensor on the way to a mask: independent numbers, evenly from `shift` to `shift + 1`."""

    draw: RecordedCall
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Mask:
    """Independent numbers: `value` with probability `keep`, else zero."""

    draw: RecordedCall
    keep: float
    value: float = 1.0
    low: bool = True  # kept are the numbers below a bound, or those above
    made: tuple[Tensor, ...] = ()  # on the way to the mask


State = Drawn | Mask | None
Rule = Callable[..., State]  # (state, *numbers)

BLANK: Final = frozenset({"empty", "zeros", "ones", "full"})
SAME_ORDER: Final = frozenset({"view", "reshape", "unsqueeze", "clone", "contiguous", "detach"})
SIZES: Final = (int, torch.Size, torch.memory_format)
CASTS: Final = frozenset({"to", "type", "float"})
TYPES: Final = (torch.float32, torch.float64, torch.bool)  # others round, or wrap around


def mask_of(calls: Iterable[RecordedCall]) -> Mask | None:
    """The mask that is the result of calls, each on the result of that before; None of others."""
    state: State = None
    found: list[Tensor] = []
    for call in calls:
        now = found[-1] if found else None
        tensors = [each for each in call.given if isinstance(each, Tensor)]
        (args, kwargs), (made, *more) = call.arguments, call.made
        if more or len(tensors) != (now is not None) or any(each is not now for each in tensors):
            return None
        if now is None:
            state = Drawn(call) if call.name == "rand" and is_plain(kwargs) else None
            known = state is not None or call.name in BLANK
        else:
            state = next_state(state, call, args, kwargs)
            known = state is not None and made.numel() == now.numel()
        if not known or made.dtype not in TYPES:
            return None
        found.append(made)
    if not isinstance(state, Mask) or not 0 <= state.keep <= 1:
        return None
    return replace(state, made=tuple(found))


def next_state(state: State, call: RecordedCall, args: Any, kwargs: Mapping[str, Any]) -> State:
    """What a call makes of a tensor, its first argument."""
    name, numbers = call.name.strip("_"), args[1:]
    if not args or not isinstance(args[0], Tensor):  # as in torch.div(1, mask)
        return None
    if name in ("bernoulli", "uniform"):
        return _drawn_in_place(call, numbers, kwargs)
    if name in SAME_ORDER:
        others = (each for each in call.given if not isinstance(each, Tensor))
        return state if all(isinstance(each, SIZES) for each in others) else None
    if name in CASTS:
        return state if _is_to_floating_point(numbers, kwargs) else None
    rule = _RULES.get(name)
    if rule is None or kwargs or not all(_is_number(each) for each in numbers):
        return None
    return rule(state, *numbers) if len(numbers) == _NUMBERS[name] else None


def _drawn_in_place(call: RecordedCall, given: Any, kwargs: Mapping[str, Any]) -> State:
    """bernoulli_(keep) and uniform_(), which write over a whole tensor."""
    given = (*given, *(kwargs[each] for each in ("p",) if each in kwargs))
    others = {name for name, each in kwargs.items() if name != "p" and each is not None}
    if others or len(given) > 2 or not all(_is_number(each) for each in given):
        return None
    if call.name == "bernoulli_":
        (keep,) = given or (0.5,)
        return Mask(call, float(keep))
    return Drawn(call) if call.name == "uniform_" and tuple(given) in ((), (0, 1)) else None


def is_plain(kwargs: Mapping[str, Any]) -> bool:
    """Whether numbers are drawn by torch's own generator, into a new tensor."""
    return all(kwargs.get(name) is None for name in ("generator", "out", "names"))


def _is_to_floating_point(given: Any, kwargs: Mapping[str, Any]) -> bool:
    values = [*given, *kwargs.values()]
    dtypes = [each for each in values if isinstance(each, torch.dtype)]
    known = (torch.dtype, torch.device, bool, type(None))
    return all(isinstance(each, known) for each in values) and all(
        each.is_floating_point for each in dtypes
    )


def _is_number(each: Any) -> bool:
    return isinstance(each, Number) and not isinstance(each, (bool, complex))


def _shifted(state: State, number: float) -> State:
    return replace(state, shift=state.shift + number) if isinstance(state, Drawn) else None


def _floored(state: State) -> State:
    fits = isinstance(state, Drawn) and 0 <= state.shift <= 1
    return Mask(state.draw, state.shift, low=False) if fits else None  # type: ignore[union-attr]


def _below(state: State, number: float) -> State:
    return Mask(state.draw, number - state.shift) if isinstance(state, Drawn) else None


def _above(state: State, number: float) -> State:
    keep = 1 - number + state.shift if isinstance(state, Drawn) else 0.0
    return Mask(state.draw, keep, low=False) if isinstance(state, Drawn) else None


def _multiplied(state: State, number: float) -> State:
    return replace(state, value=state.value * number) if isinstance(state, Mask) else None


def _divided(state: State, number: float) -> State:
    return _multiplied(state, 1 / number) if number else None


_RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("add", "radd", "iadd"), _shifted),
    "floor": _floored,
    **dict.fromkeys(("lt", "le"), _below),
    **dict.fromkeys(("gt", "ge"), _above),
    **dict.fromkeys(("mul", "rmul", "imul", "multiply"), _multiplied),
    **dict.fromkeys(("div", "truediv", "itruediv", "divide", "true_divide"), _divided),
}
_NUMBERS: Final = {name: int(rule is not _floored) for name, rule in _RULES.items()}
