"""Lists, sets and dicts that others hold: whether they hold the same items, in the same places."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import getitem, is_
from typing import Any, Final, TypeAlias

CONTAINERS: Final = (list, set, dict, tuple)
Items: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """Names under which a dict holds values; `title` stands before a name in a text."""

    parent: Mapping[str, Any]
    names: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A list, set or dict, what holds it by which key, and the name by which it is reached."""

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


class Links:
    """The lists, sets and dicts below values, each of at most so many items.

    Two lists may be equal, and one alone change later: so `hold` tells whether each is still there.
    """

    def __init__(self, held: Iterable[Held], *, most: int, depth: int) -> None:
        self.links = [
            Link(*link, f"{each.title}{name}")
            for each in held
            for name in each.names
            for link in _links(each.parent, name, most, depth)
        ]
        self._parents = [each.parent for each in self.links]
        self._keys = [each.key for each in self.links]
        self._children = [each.child for each in self.links]
        self._dicts = [each for each in self._children if isinstance(each, dict)]
        self._others = [each for each in self._children if not isinstance(each, dict)]

    def hold(self) -> bool:
        """Whether all are in their places. Raises LookupError where a place is gone."""
        now = map(getitem, self._parents, self._keys)
        return all(map(is_, now, self._children))

    def look(self) -> list[list[Items]]:
        """What they hold."""
        return [[*map(tuple, self._others)], [tuple(each.items()) for each in self._dicts]]


def _links(parent: Any, key: Any, most: int, depth: int) -> Iterator[tuple[Any, Any, Any]]:
    child = parent.get(key) if isinstance(parent, Mapping) else parent[key]
    if not isinstance(child, CONTAINERS) or len(child) > most or not depth:
        return
    if not isinstance(child, tuple):
        yield parent, key, child
    if not isinstance(child, set):
        for below in [*child] if isinstance(child, dict) else range(len(child)):
            yield from _links(child, below, most, depth - 1)
