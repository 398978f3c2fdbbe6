"""State changes: the torch calls by which a forward changes the module's tensors, in each step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Named:
    """The name of a parameter or buffer of the module, or of a held copy of a buffer."""

    name: str


@dataclass(frozen=True, slots=True)
class Made:
    """The number of a tensor that an earlier call of the step made."""

    number: int


@dataclass(frozen=True, slots=True)
class StateCall:
    """A torch call. Named and Made stand for the tensors among its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    makes: tuple[int, ...]  # the numbers of the tensors that it returns


@dataclass(frozen=True, slots=True)
class StateChanges:
    """The calls, in their order, by which a forward changes parameters and buffers.

    No call depends on a map. A step makes them before its passes. Passes that read a buffer before
    a call changes it read a held copy, which one of the calls writes.
    """

    calls: tuple[StateCall, ...] = ()
    written: tuple[str, ...] = ()  # parameters and buffers that the calls change
    held: Mapping[str, str] = field(default_factory=dict)  # by held copy, its buffer
    nbytes: int = 0  # of held copies, of the calls' tensors, and of copies for a failed step


NO_CHANGES: Final = StateChanges()
