"""Rounding search: which of a step's rounded maps let gradients be wrong by more than a limit.

Errors split. A map that only gradients of parameters are made of disturbs those alone, and all such
maps are judged by one step. The others disturb what is ahead of them too. They are judged in
groups, and a group over the limit in halves.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ..graph import Direction, Graph, Kind

MOST_PROBES: Final = 24  # steps of a search: maps that are not judged by then are dropped
Errors: TypeAlias = Mapping[str, float]  # by parameter, the relative error of its gradient


@dataclass(frozen=True, slots=True)
class Verdict:
    """The relative RMS errors of a step's gradients, and the maps that are over the limit.

    `dropped` has the errors that they cause, and whose these are. An error that is no number is of
    a map that was not judged.
    """

    errors: Errors
    dropped: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    probes: int = 2

    @property
    def worst(self) -> tuple[float, str]:
        """The largest error, and whose it is."""
        return worst_of(self.errors)


def disturbed(graph: Graph, maps: Iterable[str]) -> dict[str, frozenset[str]]:
    """By map the parameters whose gradients alone are made of it; maps that disturb more are out.

    A map disturbs more where a gradient of a map follows from what is made of it.
    """
    found: dict[str, frozenset[str]] = {}
    for name in maps:
        reached, params = {name}, set[str]()
        for pass_ in graph.passes:
            if pass_.direction is Direction.BACKWARD and reached & pass_.read_buffers:
                reached |= pass_.written_buffers
                params.update(filter(None, graph.ops[pass_.op].params))
        if not any(graph.buffers[each].kind is Kind.GRAD for each in reached):
            found[name] = frozenset(params)
    return found


@dataclass
class RoundingSearch:
    """A search for the maps that may stay rounded together.

    `errors_of` runs a step in which these maps alone are rounded. `alone` are the maps that disturb
    the gradients of few parameters, with these. `dropped` are the maps that may not stay, with the
    errors that they caused and whose these are.
    """

    errors_of: Callable[[frozenset[str]], Errors]
    alone: Mapping[str, frozenset[str]]
    limit: float
    dropped: dict[str, tuple[float, str]] = field(default_factory=dict)
    probes: int = 0

    def run(self, maps: Sequence[str], errors: Errors) -> None:
        """Judge the maps, whose rounding all together gave errors over the limit."""
        alone = [name for name in maps if self.alone.get(name, frozenset()) & errors.keys()]
        accepted = frozenset(alone)
        if alone:
            found = self._probe(accepted)
            for name in alone:
                worst = worst_of({each: found.get(each, 0.0) for each in self.alone[name]})
                if not worst[0] <= self.limit:
                    self.dropped[name] = worst
            accepted -= self.dropped.keys()
        others = [name for name in maps if name not in alone]
        if others:
            self._judge(others, accepted, None if self.dropped else errors)
        if not self.dropped:  # together they are over the limit, and none alone
            self.dropped |= dict.fromkeys(maps, worst_of(errors))

    def _judge(
        self, group: Sequence[str], accepted: frozenset[str], errors: Errors | None
    ) -> frozenset[str]:
        """The accepted maps with those of the group that may be rounded beside them."""
        if errors is None:
            if self.probes >= MOST_PROBES:
                self.dropped |= dict.fromkeys(group, (float("nan"), ""))
                return accepted
            errors = self._probe(accepted.union(group))
        worst = worst_of(errors)
        if worst[0] <= self.limit:
            return accepted.union(group)
        if len(group) == 1:
            self.dropped[group[0]] = worst
            return accepted
        half = len(group) // 2
        for part in (group[:half], group[half:]):
            accepted = self._judge(part, accepted, None)
        return accepted

    def _probe(self, maps: frozenset[str]) -> Errors:
        self.probes += 1
        return self.errors_of(maps)


def worst_of(errors: Errors) -> tuple[float, str]:
    """The largest error, or one that is no number, and whose it is."""
    return max(((error, name) for name, error in errors.items()), key=_order, default=(0.0, ""))


def _order(item: tuple[float, str]) -> tuple[bool, float]:
    return item[0] != item[0], item[0]
