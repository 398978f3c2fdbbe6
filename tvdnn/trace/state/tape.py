"""The tape of a traced forward: torch's calls on tensors that come from no map."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from ...graph.state import Made, Named, StateCall
from .functionalize import storage_of
from .meta_copies import MetaCopies
from .recorded_call import RecordedCall

COUNTER = "num_batches_tracked"  # a buffer of batch normalizations
STAND_IN = -1  # the number of a result that is a parameter or buffer itself
BY_GRADIENTS = frozenset({"backward", "grad"})


@dataclass(frozen=True, slots=True)
class TapedCall:
    """A recorded call on the tape."""

    recorded: RecordedCall
    place: int  # how many calls were on the tape before
    call: StateCall  # with references in the place of tensors
    reads: frozenset[int]  # storages of its arguments
    needs: frozenset[int]  # numbers of earlier calls' tensors
    changes: frozenset[int]  # storages that it wrote
    nbytes: int  # of new tensors
    why: str  # why no step could make the call; "" where one could


class OperatorWatch(TorchDispatchMode):
    """Notes the storages that torch's operators write, and operators that draw random numbers.

    Torch's own counts of writes miss lists of tensors under a mode, and tracked statistics.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn_by = ""
        self.written: dict[int, str] = {}  # operators by storages

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        arguments = func._schema.arguments
        given = dict(zip((each.name for each in arguments), args, strict=False)) | (kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drawn_by = str(func)
        for argument in arguments:
            if _writes(argument, given, backward="_backward" in str(func)):
                found = tensors_in(given.get(argument.name))
                self.written |= dict.fromkeys(_storages(found), str(func))
        return func(*args, **(kwargs or {}))

    def effect_on(self, tensors: Iterable[Tensor]) -> str | None:
        """The side effect of the operators: random numbers, or a write to one of `tensors`."""
        if self.drawn_by:
            return f"draws random numbers ({self.drawn_by})"
        writers = (self.written.get(storage) for storage in _storages(tensors))
        return next((f"changes a tensor that it reads ({each})" for each in writers if each), None)


def _writes(argument: Any, given: Mapping[str, Any], *, backward: bool) -> bool:
    """Whether an operator writes an argument. Batch normalization does so undeclared."""
    tracks = argument.name in ("running_mean", "running_var") and not backward
    trains = any(given.get(name) for name in ("training", "train"))
    return (tracks and trains) or (argument.alias_info is not None and argument.alias_info.is_write)


class StateTape:
    """Keeps the calls that may change parameters and buffers; `place` is their number so far.

    An op on maps reads a parameter or buffer as the calls before the op's place have left it.
    """

    def __init__(self, meta_copies: MetaCopies) -> None:
        self.meta_copies = meta_copies
        self.calls: list[TapedCall] = []
        self.place = 0
        self._numbers: dict[int, int] = {}  # of tensors that calls made, by their ids
        self.made: list[Tensor] = []  # the tensors, which live as long as their ids count

    def add(self, call: RecordedCall) -> None:
        """Put a call on the tape."""
        given = call.arguments
        read, made = list(tensors_in(given)), list(tensors_in(call.made))
        args, kwargs = replaced(given, self._reference)
        self.calls.append(
            TapedCall(
                call,
                self.place,
                StateCall(call.function, tuple(args), dict(kwargs), tuple(map(self._number, made))),
                _storages(read),
                frozenset(self._numbers.get(id(each), STAND_IN) for each in read) - {STAND_IN},
                _storages(call.written),
                _new_nbytes(made, read),
                _why_not_repeatable(call) or self._why_not(call.function, given),
            )
        )
        self.place += 1

    def erase(self, place: int) -> None:
        """Take a call off the tape."""
        self.calls = [each for each in self.calls if each.place != place]

    def live(self) -> list[TapedCall]:
        """The calls that change parameters or buffers, and the calls on which these depend."""
        wanted = {storage_of(copy) or 0 for copy in self.meta_copies.named().values()}
        needed: set[int] = set()
        live: list[TapedCall] = []
        for each in reversed(self.calls):
            if each.changes & wanted or needed.intersection(each.call.makes):
                live.append(each)
                wanted |= each.reads
                needed |= each.needs
        return live[::-1]

    def _why_not(self, function: Callable[..., Any], given: Any) -> str:
        name = getattr(function, "__name__", "")
        if name in BY_GRADIENTS:
            return "by gradients"
        for tensor in (each for each in _leaves(given) if isinstance(each, Tensor)):
            known = self._name_of(tensor)
            if known is None and id(tensor) not in self._numbers:
                return "by a tensor that is no parameter or buffer"
            if known is not None and self.meta_copies.is_recast(known):
                return f"by {known}, which is neither float32 nor of whole numbers"
        return ""

    def _reference(self, value: Any) -> Any:
        """The reference on the tape that stands for a tensor."""
        if not isinstance(value, Tensor):
            return value
        name = self._name_of(value)
        return Made(self._numbers.get(id(value), STAND_IN)) if name is None else Named(name)

    def _name_of(self, tensor: Tensor) -> str | None:
        """The name of a meta copy; None for another tensor."""
        name = self.meta_copies.names.get(id(tensor))
        return name if name is not None and self.meta_copies.tensors[name] is tensor else None

    def _number(self, tensor: Tensor) -> int:
        """The number of a tensor that a call has made."""
        if self._name_of(tensor) is not None:
            return STAND_IN
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.made)
            self.made.append(tensor)
        return self._numbers[id(tensor)]


def _why_not_repeatable(call: RecordedCall) -> str:
    return "by random numbers" if call.draws else "in another form" if call.formed else ""


def replaced(values: Any, by: Callable[[Any], Any]) -> Any:
    """The values of nested tuples, lists, dicts and slices, each replaced."""
    return map_aggregate(values, by)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The strided tensors in nested tuples, lists, dicts and slices."""
    return (each for each in _leaves(values) if _is_strided(each))


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def takes_maps(given: Any) -> bool:
    """Whether a map is among the arguments of a call."""
    return any(isinstance(each, fx.Proxy) for each in _leaves(given))


@dataclass(frozen=True, slots=True)
class WatchedCall:
    """The result of a call, the storages that it wrote, and whether it drew random numbers."""

    result: Any
    written: frozenset[int]
    draws: bool


def watched(function: Callable[..., Any], call: Callable[[], Any]) -> WatchedCall:
    """Make a call of a function under watch."""
    if getattr(function, "__name__", "") == "__get__":  # of a tensor's property
        return WatchedCall(call(), frozenset(), False)
    with OperatorWatch() as watch:
        result = call()
    return WatchedCall(result, frozenset(watch.written), bool(watch.drawn_by))


def _leaves(values: Any) -> list[Any]:
    found: list[Any] = []
    map_aggregate(values, found.append)
    return found


def _storages(tensors: Iterable[Tensor]) -> frozenset[int]:
    return frozenset(storage_of(each) or 0 for each in tensors)


def _new_nbytes(made: Iterable[Tensor], read: Iterable[Tensor]) -> int:
    known = _storages(read)
    return sum(x.numel() * x.element_size() for x in made if storage_of(x) not in known)
