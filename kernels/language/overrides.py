"""Configurations: what tuning found for single launches, in place of the tiles of their rules.

A configuration changes how a kernel runs, never its sums or what leaves beside them: results have
the same bits by all. Those of a network are active within its own launches alone.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, TypeVar

Configuration = Mapping[str, int]  # fields of a tile that are not as its rule has them
Table = Mapping[str, Configuration]
TileT = TypeVar("TileT")


@dataclass(frozen=True, slots=True)
class TileRequest:
    """A launch that may be configured: its kernel, its tile by the rule, and what that is for."""

    kernel: str
    tile: Any
    facts: Mapping[str, Any]

    @property
    def key(self) -> str:
        return " ".join([self.kernel, *(f"{name}={value}" for name, value in self.facts.items())])


class Configurations:
    """Configurations by key, and the launches that `asked` for theirs."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.asked: dict[str, TileRequest] = {}

    def tile(self, asked: TileRequest) -> Any:
        """The tile of a launch."""
        key = asked.key
        self.asked[key] = asked
        return replace(asked.tile, **self.table.get(key, {}))

    def around(self, launcher: Callable[..., None]) -> Callable[..., None]:
        """The launcher with these configurations."""

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
    """The tile that a launch is configured to have, by default the rule's."""
    active = _active.get()
    return tile if active is None else active.tile(TileRequest(kernel, tile, facts()))
