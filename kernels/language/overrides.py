"""Configurations: tiles that tuning found for single launches, in place of those of the rules.

A configuration changes how a kernel runs, never the order of its sums: results have the same bits
with every configuration. The configurations of a network are active in its own launches alone.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, TypeVar

Configuration = Mapping[str, int]  # fields of a tile that differ from the rule's tile
Table = Mapping[str, Configuration]  # configurations by the key of a launch
TileT = TypeVar("TileT")


@dataclass(frozen=True, slots=True)
class TileRequest:
    """A launch that may be configured."""

    kernel: str
    tile: Any  # the rule's tile, a dataclass
    # Sizes and types that the rule depends on; of samples their number where they are few.
    facts: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The kernel and its facts as one string."""
        return " ".join([self.kernel, *(f"{name}={value}" for name, value in self.facts.items())])


class Configurations:
    """Configurations by key, and the requests of all launches so far."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.requests: dict[str, TileRequest] = {}

    def tile(self, request: TileRequest) -> Any:
        """The tile of a launch: the rule's, with the fields that the table has for its key."""
        key = request.key
        self.requests[key] = request
        return replace(request.tile, **self.table.get(key, {}))

    def around(self, launcher: Callable[..., None]) -> Callable[..., None]:
        """The launcher, run with these configurations active."""

        @wraps(launcher)
        def launch(*args: Any, **kwargs: Any) -> None:
            before = _active.set(self)
            try:
                launcher(*args, **kwargs)
            finally:
                _active.reset(before)

        return launch


_active: Final[ContextVar[Configurations | None]] = ContextVar("configurations", default=None)


def configured(kernel: str, tile: TileT, facts: Callable[[], Mapping[str, Any]]) -> TileT:
    """The tile of a launch: the active configuration's, or else the rule's `tile`.

    `facts` is called only where configurations are active.
    """
    active = _active.get()
    return tile if active is None else active.tile(TileRequest(kernel, tile, facts()))
