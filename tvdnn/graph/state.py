"""What a forward changes of the module's own tensors: torch's calls, made again in each step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Named:
    """A parameter or buffer of the module, or a held copy of a buffer, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that an earlier call of the step has made."""

    number: int


@dataclass(frozen=True, slots=True)
class StateCall:
    """A call of torch's. Named and Made stand for the tensors among its arguments.

    `makes` are the numbers of the tensors that it returns.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    makes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateChanges:
    """The calls, in their order, by which a forward changes parameters and buffers.

    None of them depends on a map. A step makes them before all its passes. Passes that read a
    buffer before a call changes it read a held copy, which one of the calls writes.
    """

    calls: tuple[StateCall, ...] = ()
    # the names of the parameters and buffers that the calls change
    written: tuple[str, ...] = ()
    # the buffer that each held copy is of
    held: Mapping[str, str] = field(default_factory=dict)
    # device bytes of held copies, of what calls make, and of copies for a step that fails
    nbytes: int = 0


NO_CHANGES: Final = StateChanges()
