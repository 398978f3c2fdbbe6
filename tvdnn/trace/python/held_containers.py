"""Lists, sets and dicts in attributes and variables, compared with those of before."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import getitem, is_
from typing import Any, Final, TypeAlias

CONTAINERS: Final = (list, set, dict, tuple)
Items: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class HeldNames:
    """Names under which a dict holds values; `title` is the prefix of a name in messages."""

    parent: Mapping[str, Any]
    names: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class HeldContainer:
    """A list, set or dict, its holder and key, and the name by which it is reached."""

    parent: Any
    key: Any
    child: Any
    name: str

    def items(self) -> Items:
        return tuple(self.child.items() if isinstance(self.child, dict) else self.child)

    def put_back(self, items: Items) -> None:
        self.child.clear()
        if isinstance(self.child, list):
            self.child.extend(items)
        else:
            self.child.update(items)


class HeldContainers:
    """The lists, sets and dicts below values, each of at most `most` items, to a `depth`.

    Two lists may be equal, and one alone may change later. `hold` compares their identities.
    """

    def __init__(self, held: Iterable[HeldNames], *, most: int, depth: int) -> None:
        self.containers = [
            HeldContainer(*link, f"{each.title}{name}")
            for each in held
            for name in each.names
            for link in _containers_below(each.parent, name, most, depth)
        ]
        self._parents = [each.parent for each in self.containers]
        self._keys = [each.key for each in self.containers]
        self._children = [each.child for each in self.containers]
        self._dicts = [each for each in self._children if isinstance(each, dict)]
        self._others = [each for each in self._children if not isinstance(each, dict)]

    def hold(self) -> bool:
        """Whether all are in their places. Raises LookupError for a place that is gone."""
        now = map(getitem, self._parents, self._keys)
        return all(map(is_, now, self._children))

    def look(self) -> list[list[Items]]:
        """Their items."""
        return [[*map(tuple, self._others)], [tuple(each.items()) for each in self._dicts]]


def _containers_below(
    parent: Any, key: Any, most: int, depth: int
) -> Iterator[tuple[Any, Any, Any]]:
    child = parent.get(key) if isinstance(parent, Mapping) else parent[key]
    if not isinstance(child, CONTAINERS) or len(child) > most or not depth:
        return
    if not isinstance(child, tuple):
        yield parent, key, child
    if not isinstance(child, set):
        for below in [*child] if isinstance(child, dict) else range(len(child)):
            yield from _containers_below(child, below, most, depth - 1)
