"""The joint linear program: which shares of maps are away or made again, and when.

Steps of a coarse clock keep their order. By step it counts the bytes that have gone out, come back
and freed memory so far, those that are absent because they are made again later, and the seconds
until the next step. What is made at a point finds there what it is made of. A map may be away or
made again in part.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ...graph import is_lossy
from ..ir.plan import HOST
from .columns import AbsentColumn, Columns
from .linear_program import LinearProgram
from .rows import Array, SparseRows, Term

TRACKS = ("out", "back", "free", "idle", "final", "due", "absent")
EPSILON = 1e-7  # of the step, as the price of a section that is away: none is in vain
SENSITIVITY_STEP = 0.01  # share of a resource by which sensitivities raise it


@dataclass(frozen=True, slots=True)
class Solution:
    """The shares of all columns, and what they cost."""

    step_s: float
    away: Array
    absent: Array
    blocks: Array
    coded: Array
    prices: Array  # seconds that the whole of a column away or absent would add, or save
    coded_prices: Array
    sensitivities: Mapping[str, float]  # seconds saved by 1% more compute, link, memory or host


class JointLP:
    """The program of a skeleton's columns, with at most `limit` live bytes.

    It is solved again under other limits, from the basis of its last optimum.
    """

    def __init__(self, columns: Columns, limit: int, host_budget: int | None = None) -> None:
        self.columns = columns
        clock = columns.clock
        self._num, self._limit = clock.num, limit
        self._unit_s = float(clock.seconds.sum())
        most = float(clock.required.max(initial=1))
        self._unit = float((clock.required - limit).max(initial=0)) or most  # bytes
        self.first_absent = len(columns.away)
        self._runs = self.first_absent + len(columns.absent)
        self._blocks = self._runs + len(columns.runs)
        self._coded = self._blocks + len(columns.blocks)
        self._tracks = self._coded + len(columns.coded)
        self._waits = self._tracks + len(TRACKS) * (self._num + 1)
        self._width = self._waits + self._num
        self._never = set[int]()
        self.with_codes = True
        self.conflicts: tuple[set[int], ...] = tuple(set() for _ in columns.absent)
        self._ub, self._eq = SparseRows(), SparseRows()
        self._add_tracks()
        self._add_seconds()
        self._memory_rows = [self._add_memory(step) for step in range(self._num)]
        self._link_rows = [*self._add_link(0), *self._add_link(1)]
        self._host_rows = [] if host_budget is None else self._add_host(host_budget)
        self._add_exclusion()
        self._add_precedence()
        tiled = columns.skeleton.program.graph.row_tiles > 1  # few samples with maps of many GiB
        self._program = LinearProgram(self._objective(), self._ub, self._eq, coarse=tiled)

    def limit(self, limit: int, *, link_share: float = 1.0, with_codes: bool = True) -> None:
        """Allow so many live bytes and this share of the link. Unless `with_codes`, no codes."""
        self._limit, self.with_codes = limit, with_codes
        self._program.limit(self._memory_rows, self._spare())
        for row, step, rate in self._link_rows:
            self._program.change(row, self._waits + step, -link_share * rate)

    def bounds(self) -> tuple[Array, Array]:
        """The least and the most of each column."""
        low, high = np.zeros(self._width), np.full(self._width, np.inf)
        high[: self._tracks] = 1.0
        high[sorted(self._never)] = 0.0
        if not self.with_codes:
            high[self._coded : self._tracks] = 0.0
        high[[self._track("out", 0), self._track("back", 0)]] = 0.0
        return low, high

    def solve(
        self, bounds: tuple[Array, Array] | None = None, most_s: float = inf
    ) -> Solution | None:
        """The optimum within bounds; None where there is none of at most so many seconds."""
        found = self._program.solve(*(bounds or self.bounds()), most_s / self._unit_s)
        if found is None:
            return None
        x, prices = found.values, found.column_prices
        return Solution(
            float(x[self._waits :].sum()) * self._unit_s,
            x[: self.first_absent],
            x[self.first_absent : self._runs],
            x[self._blocks : self._coded],
            x[self._coded : self._tracks],
            prices[: self._runs] * self._unit_s,
            prices[self._coded : self._tracks] * self._unit_s,
            self._sensitivities(x, found.row_prices),
        )

    def _objective(self) -> Array:
        cost = np.zeros(self._width)
        cost[self._waits :] = 1.0
        sizes = [each.nbytes for each in self.columns.away]
        cost[: self.first_absent] = EPSILON * np.array(sizes) / self._unit
        return cost

    def _track(self, name: str, step: int) -> int:
        return self._tracks + TRACKS.index(name) * (self._num + 1) + step

    def _add_tracks(self) -> None:
        """What has happened before each step is what had before the last one, and what is new."""
        new = self._changes()
        for name in ("idle", "final", "due", "absent"):
            for step in range(self._num + 1):
                terms = [(self._track(name, step), 1.0), *new[name, step]]
                terms += [(self._track(name, step - 1), -1.0)] if step else []
                self._eq.add(terms, 0.0)
        pairs = (
            ("free", "out"),
            ("free", "idle"),
            ("out", "final"),
            ("due", "back"),
            ("back", "free"),
        )
        for step in range(self._num + 1):
            for less, more in pairs:
                terms = [(self._track(less, step), 1.0), (self._track(more, step), -1.0)]
                self._ub.add(terms, 0.0)
            for name in ("out", "back") if step else ():
                self._ub.add(
                    [(self._track(name, step - 1), 1.0), (self._track(name, step), -1.0)], 0.0
                )

    def _changes(self) -> Mapping[tuple[str, int], list[Term]]:
        """By track and step, the bytes of each column that are new."""
        columns, new = self.columns, defaultdict[tuple[str, int], list[Term]](list)
        for number, away in enumerate(columns.away):
            each, size = columns.classes[away.number], away.nbytes / self._unit
            new["idle", each.last + 1].append((number, -size))
            new["final", min(each.last, each.final) + 1].append((number, -size))
            new["due", away.next].append((number, -size))
        nbytes = [each.nbytes for each in columns.classes]
        spans = [
            (number, *span, nbytes[span[0]])
            for number, absent in enumerate(columns.absent, self.first_absent)
            for span in absent.frees
        ]
        spans += [
            (number, which, *self._idle(which), nbytes[which])
            for number, block in enumerate(columns.blocks, self._blocks)
            for which in block.classes
        ]
        spans += [
            (number, which, *self._idle(which), nbytes[which] - coded.nbytes[which])
            for number, coded in enumerate(columns.coded, self._coded)
            for which in coded.classes
        ]
        for number, _, last, following, freed in spans:
            size = freed / self._unit
            new["absent", last + 1].append((number, -size))
            new["absent", following].append((number, size))
        return new

    def _idle(self, number: int) -> tuple[int, int]:
        """The steps between which the sections of a class are idle."""
        return self.columns.classes[number].last, self.columns.classes[number].next

    def _add_seconds(self) -> None:
        """A step takes its launches and all makers that run again ahead of it."""
        columns = self.columns
        seconds: list[list[Term]] = [[] for _ in range(self._num)]
        for number, run in enumerate(columns.runs, self._runs):
            seconds[run.step].append((number, run.seconds / self._unit_s))
        for number, block in enumerate(columns.blocks, self._blocks):
            members = [columns.classes[each] for each in block.classes]
            rate = block.seconds / self._unit_s / sum(each.nbytes for each in members)
            for each in members:
                seconds[each.next].append((number, rate * each.nbytes))
        for number, coded in enumerate(columns.coded, self._coded):
            for which, taken in coded.seconds.items():
                for step, taken_s in zip(self._idle(which), taken, strict=True):
                    seconds[step].append((number, taken_s / self._unit_s))
        for number, away in enumerate(columns.away):
            last = columns.classes[away.number].last
            seconds[last] += [(number, -away.saved_s / self._unit_s)] if away.saved_s else []
        for step, least_s in enumerate((columns.clock.seconds / self._unit_s).tolist()):
            self._ub.add([(self._waits + step, -1.0), *seconds[step]], -least_s)

    def _add_memory(self, step: int) -> int:
        names = ("back", 1.0), ("free", -1.0), ("absent", -1.0)
        terms = [(self._track(name, step), sign) for name, sign in names]
        return self._ub.add(terms, float(self._spare()[step]))

    def _spare(self) -> Array:
        """The bytes by step that the limit leaves, if all sections stay; in units."""
        spare: Array = (self._limit - self.columns.clock.required) / self._unit
        return spare

    def _add_link(self, way: int) -> list[tuple[int, int, float]]:
        """No more goes this way in a step than the link takes.

        A way has its rate alone less in proportion to what goes the other way meanwhile. Gives the
        rows, each with its step and by how much a second raises its limit.
        """
        link = self.columns.costs.links[HOST]
        alone = [self._rate(rate) for rate in (link.out, link.back)]
        both = [self._rate(rate) for rate in (link.out_duplex, link.back_duplex)]
        if both[0] / alone[0] + both[1] / alone[1] < 1.0:  # then taking turns is faster
            both = [rate / 2 for rate in alone]
        names = ("out", "back")
        factors = (names[way], 1.0), (names[1 - way], (alone[way] - both[way]) / both[1 - way])
        found = []
        for step in range(self._num):
            terms = [(self._waits + step, -alone[way])]
            for name, factor in factors:
                terms.append((self._track(name, step + 1), factor))
                terms.append((self._track(name, step), -factor))
            found.append((self._ub.add(terms, 0.0), step, alone[way]))
        return found

    def _rate(self, rate: float) -> float:
        """Of the largest sections, which lose least to the latency."""
        classes = self.columns.classes
        largest = max((idle.nbytes for each in classes for idle in each.members), default=1)
        seconds = largest / rate + self.columns.costs.links[HOST].latency_s
        return largest / seconds * self._unit_s / self._unit

    def _add_host(self, budget: int) -> list[int]:
        names = ("out", 1.0), ("back", -1.0)
        return [
            self._ub.add([(self._track(n, step), sign) for n, sign in names], budget / self._unit)
            for step in range(self._num + 1)
        ]

    def _add_exclusion(self) -> None:
        """A map is absent or away at one time by one column alone."""
        columns = self.columns
        of_class, of_gap = defaultdict[int, list[int]](list), defaultdict[object, list[int]](list)
        for number, away in enumerate(columns.away):
            if away.coded is None:
                of_class[away.number].append(number)
            else:
                self._ub.add([(number, 1.0), (self._coded + away.coded, -1.0)], 0.0)
        for number, coded in enumerate(columns.coded, self._coded):
            for which in coded.classes:
                of_class[which].append(number)
        for number, absent in enumerate(columns.absent, self.first_absent):
            of_gap[absent.buffer, absent.low].append(number)
            for which, _, _ in absent.frees:
                of_class[which].append(number)
        for number, block in enumerate(columns.blocks, self._blocks):
            for which in block.classes:
                of_class[which].append(number)
        for numbers in (*of_class.values(), *of_gap.values()):
            self._ub.add([(number, 1.0) for number in numbers], 1.0)
        for numbers in of_gap.values():
            for number in numbers:
                others = {other - self.first_absent for other in numbers if other != number}
                self.conflicts[number - self.first_absent].update(others)

    def _add_precedence(self) -> None:
        """What is made again has its makers run, and these find what they take."""
        columns = self.columns
        absent, away = defaultdict[str, list[int]](list), defaultdict[int, list[int]](list)
        served = defaultdict[int, list[int]](list)
        for number, column in enumerate(columns.absent, self.first_absent):
            self._ub.add([(number, 1.0), (self._runs + column.run, -1.0)], 0.0)
            absent[column.buffer].append(number)
            served[column.run].append(number - self.first_absent)
        for number, each in enumerate(columns.away):
            if each.coded is None:
                away[each.number].append(number)
        rounded = defaultdict[str, list[int]](list)  # of which nothing is made again
        for number, coded in enumerate(columns.coded, self._coded):
            if is_lossy(coded.form):
                rounded[coded.buffer].append(number)
            for which in coded.classes:
                away[which].append(number)
        for number, run in enumerate(columns.runs):
            for name, other in run.takes:
                for coded_number in rounded[name] if other is None else ():
                    self._ub.add([(self._runs + number, 1.0), (coded_number, 1.0)], 1.0)
                again = [] if other is None else [(self._runs + other, -1.0)]
                if columns.is_used_from(name, run.point):
                    covering = [n for n in absent[name] if self._covers(n, run.point)]
                    self._require(number, name, covering, again, away)
                    for column_number in served[number] if not again else ():
                        for cover in covering:
                            self.conflicts[column_number].add(cover - self.first_absent)
                            self.conflicts[cover - self.first_absent].add(column_number)
                elif again:
                    self._ub.add([(self._runs + number, 1.0), *again], 0.0)
                else:
                    self._never.add(self._runs + number)

    def _covers(self, number: int, point: int) -> bool:
        column: AbsentColumn = self.columns.absent[number - self.first_absent]
        return column.low < point < column.point

    def _require(
        self,
        number: int,
        name: str,
        covering: Sequence[int],
        again: Sequence[Term],
        away: Mapping[int, Sequence[int]],
    ) -> None:
        """Of a map that a run takes, no share is gone at its point, or it is made again there."""
        columns, step = self.columns, self.columns.runs[number].step
        terms = [(self._runs + number, 1.0), *((cover, 1.0) for cover in covering), *again]
        if covering:
            self._ub.add(terms, 1.0)
        for which in columns.of_buffer.get(name, ()):
            each = columns.classes[which]
            if each.last < step < each.next:
                gone = [(n, 1.0) for n in away[which] if self._ends(n, which) > step]
                self._ub.add([*terms, *gone], 1.0)

    def _ends(self, number: int, which: int) -> int:
        """The step until which a column has the raw sections of a class gone."""
        away = self.columns.away
        return away[number].next if number < len(away) else self.columns.classes[which].next

    def _sensitivities(self, found: Array, marginals: Array) -> Mapping[str, float]:
        """What 1% more of each would save, by the prices of its rows; the most first."""
        waits, limits = found[self._waits :], self._ub.limits
        busy = waits <= self.columns.clock.seconds / self._unit_s * (1 + EPSILON)
        saved = {
            "compute": float(waits[busy].sum()),
            "link": sum(
                -marginals[row] * rate * waits[step] for row, step, rate in self._link_rows
            ),
            "memory": -float(marginals[self._memory_rows].sum()) * self._limit / self._unit,
            "host": -float(marginals[self._host_rows] @ limits[self._host_rows]),
        }
        ranked = sorted(saved.items(), key=lambda item: -item[1])
        return {name: SENSITIVITY_STEP * share * self._unit_s for name, share in ranked}
