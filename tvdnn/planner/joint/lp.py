"""The joint linear program."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_array

from .columns import Columns, AbsentColumn

Array = npt.NDArray[np.float64]
TRACKS = ("out", "back", "free", "idle", "final", "due", "made")
EPSILON = 1e-7


@dataclass(frozen=True)
class Solution:
    step_s: float
    away: npt.NDArray[np.float64]
    absent: npt.NDArray[np.float64]
    blocks: npt.NDArray[np.float64]
    memory_prices: npt.NDArray[np.float64]  # seconds a byte, by step
    prices: npt.NDArray[np.float64]  # seconds of what is taken, by absent column


class _Rows:
    def __init__(self) -> None:
        self.rows: list[int] = []
        self.cols: list[int] = []
        self.vals: list[float] = []
        self.limits: list[float] = []

    def add(self, terms, limit: float) -> int:
        row = len(self.limits)
        for column, value in terms:
            self.rows.append(row)
            self.cols.append(column)
            self.vals.append(value)
        self.limits.append(limit)
        return row

    def matrix(self, width: int) -> csr_array:
        return csr_array((self.vals, (self.rows, self.cols)), shape=(len(self.limits), width))


class JointLP:
    def __init__(self, columns: Columns, limit: int, host_budget: int | None = None) -> None:
        self.columns = columns
        clock = columns.clock
        num = self._num = clock.num
        self._unit_s = float(clock.seconds.sum())
        self._unit = max(1.0, float((clock.required - limit).max(initial=0)))
        self._away0, self._made0 = 0, len(columns.away)
        self._runs0 = self._made0 + len(columns.absent)
        self._blocks0 = self._runs0 + len(columns.runs)
        self._tracks0 = self._blocks0 + len(columns.blocks)
        self._waits0 = self._tracks0 + len(TRACKS) * (num + 1)
        self._width = self._waits0 + num
        self._ub, self._eq = _Rows(), _Rows()
        self._add_tracks()
        self._add_time()
        self._add_memory(limit)
        self._add_link()
        self._add_host(host_budget)
        self._add_exclusion()
        self._add_precedence()
        self._matrices = self._ub.matrix(self._width), self._eq.matrix(self._width)

    def _track(self, name: str, step: int) -> int:
        return self._tracks0 + TRACKS.index(name) * (self._num + 1) + step

    def _add_tracks(self) -> None:
        columns, num = self.columns, self._num
        changes: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        for j, each in enumerate(columns.away):
            of = columns.classes[each.number]
            size = of.nbytes / self._unit
            changes["idle", of.last + 1].append((j, -size))
            changes["final", min(of.last, of.final) + 1].append((j, -size))
            changes["due", each.next].append((j, -size))
        for name in ("idle", "final", "due"):
            for t in range(num + 1):
                terms = [(self._track(name, t), 1.0), *changes.get((name, t), ())]
                if t:
                    terms.append((self._track(name, t - 1), -1.0))
                self._eq.add(terms, 0.0)
        pairs = (("free", "out"), ("free", "idle"), ("out", "final"), ("due", "back"), ("back", "free"))
        for t in range(num + 1):
            for less, more in pairs:
                self._ub.add([(self._track(less, t), 1.0), (self._track(more, t), -1.0)], 0.0)
            for name in ("out", "back"):
                if t:
                    self._ub.add(
                        [(self._track(name, t - 1), 1.0), (self._track(name, t), -1.0)], 0.0
                    )

    def _add_time(self) -> None:
        columns = self.columns
        seconds: list[list[tuple[int, float]]] = [[] for _ in range(self._num)]
        for j, each in enumerate(columns.runs, self._runs0):
            seconds[each.step].append((j, each.seconds / self._unit_s))
        for j, block in enumerate(columns.blocks, self._blocks0):
            of = [columns.classes[n] for n in block.classes]
            total = sum(each.nbytes for each in of)
            for each in of:
                share = each.nbytes / total
                seconds[each.next].append((j, share * block.seconds / self._unit_s))
        for t in range(self._num):
            terms = [(self._waits0 + t, -1.0), *seconds[t]]
            self._ub.add(terms, -float(self.columns.clock.seconds[t]) / self._unit_s)

    def _add_memory(self, limit: int) -> None:
        columns, unit = self.columns, self._unit
        begins: list[list[tuple[int, float]]] = [[] for _ in range(self._num + 1)]
        for j, each in enumerate(columns.absent, self._made0):
            for nbytes, first, last in each.frees:
                begins[first + 1].append((j, -nbytes / unit))
                begins[last].append((j, nbytes / unit))
        for j, block in enumerate(columns.blocks, self._blocks0):
            for n in block.classes:
                of = columns.classes[n]
                begins[of.last + 1].append((j, -of.nbytes / unit))
                begins[of.next].append((j, of.nbytes / unit))
        for t in range(self._num + 1):
            before = [(self._track("made", t - 1), -1.0)] if t else []
            self._eq.add([(self._track("made", t), 1.0), *before, *begins[t]], 0.0)
        self._memory_rows = []
        for t in range(self._num):
            terms = [(self._track("back", t), 1.0), (self._track("free", t), -1.0)]
            terms.append((self._track("made", t), -1.0))
            spare = (limit - float(columns.clock.required[t])) / unit
            self._memory_rows.append(self._ub.add(terms, spare))

    def _add_link(self) -> None:
        link = self.columns.costs.link
        nbytes = [m.nbytes for c in self.columns.classes for m in c.members]
        largest = max(nbytes, default=1)

        def rate(value: float) -> float:
            return largest / (largest / value + link.latency_s) * self._unit_s / self._unit

        alone = [rate(link.to_host), rate(link.to_device)]
        both = [rate(link.to_host_duplex), rate(link.to_device_duplex)]
        if both[0] / alone[0] + both[1] / alone[1] < 1.0:
            both = [each / 2 for each in alone]
        names = ("out", "back")
        for way in (0, 1):
            loss = (alone[way] - both[way]) / both[1 - way]
            for t in range(self._num):
                self._ub.add(
                    [
                        (self._track(names[way], t + 1), 1.0),
                        (self._track(names[way], t), -1.0),
                        (self._track(names[1 - way], t + 1), loss),
                        (self._track(names[1 - way], t), -loss),
                        (self._waits0 + t, -alone[way]),
                    ],
                    0.0,
                )

    def _add_host(self, budget: int | None) -> None:
        if budget is not None:
            for t in range(self._num + 1):
                terms = [(self._track("out", t), 1.0), (self._track("back", t), -1.0)]
                self._ub.add(terms, budget / self._unit)

    def _add_exclusion(self) -> None:
        """What is absent between two steps is so by one means."""
        columns = self.columns
        away: dict[int, list[int]] = defaultdict(list)
        for j, each in enumerate(columns.away):
            away[each.number].append(j)
        absent: dict[str, list[tuple[int, AbsentColumn]]] = defaultdict(list)
        for j, each in enumerate(columns.absent, self._made0):
            absent[each.buffer].append((j, each))
        blocks: dict[int, list[int]] = defaultdict(list)
        for j, block in enumerate(columns.blocks, self._blocks0):
            for n in block.classes:
                blocks[n].append(j)
        self.exclusive: list[list[int]] = []
        for name, items in absent.items():
            by_low: dict[object, list[int]] = defaultdict(list)
            for j, c in items:
                by_low[c.low, c.rows].append(j)
            for js in by_low.values():
                self.exclusive.append(js)
                self._ub.add([(j, 1.0) for j in js], 1.0)
        for number, of in enumerate(columns.classes):
            js = [*away[number], *blocks[number]]
            js += [
                j
                for j, c in absent.get(of.buffer, ())
                if c.high == of.high and c.rows == of.rows and any(f[1] == of.last for f in c.frees)
            ]
            if len(js) > 1:
                self._ub.add([(j, 1.0) for j in js], 1.0)

    def _add_precedence(self) -> None:
        """What is made at a point finds there what it is made of."""
        columns = self.columns
        runs: dict[tuple[object, int], list[tuple[int, tuple[int, int]]]] = defaultdict(list)
        for j, each in enumerate(columns.runs, self._runs0):
            runs[each.remake, each.point].append((j, each.rows))
        absent: dict[str, list[tuple[int, AbsentColumn]]] = defaultdict(list)
        self.conflicts: list[set[int]] = [set() for _ in columns.absent]
        for js in self.exclusive:
            for j in js:
                self.conflicts[j - self._made0] |= {k - self._made0 for k in js if k != j}
        by_point: dict[tuple[object, int], list[tuple[int, AbsentColumn]]] = defaultdict(list)
        for j, each in enumerate(columns.absent, self._made0):
            absent[each.buffer].append((j, each))
            by_point[each.remake, each.point].append((j - self._made0, each))
            for k, rows in runs[each.remake, each.point]:
                if rows == each.rows:
                    self._ub.add([(j, 1.0), (k, -1.0)], 0.0)
        away: dict[int, list[int]] = defaultdict(list)
        for j, column in enumerate(columns.away):
            away[column.number].append(j)
        self._forbidden: set[int] = set()
        for (remake, point), items in list(runs.items()):
            for j, rows in items:
                for name, writers in remake.takes:
                    self._require(j, remake, point, rows, name, writers, runs, absent, away, by_point)

    def _require(self, j, remake, point, rows, name, writers, runs, absent, away, by_point) -> None:
        columns = self.columns
        step = columns.clock.segment_step[point]
        part = columns.remakes.making(name, writers)
        again = [(k, r) for k, r in runs.get((part, point), ()) if _meet(r, rows)]
        if not any(u >= point for u in columns.uses[name]):
            if not again:
                self._forbidden.add(j)
            for k, _ in again:
                self._ub.add([(j, 1.0), (k, -1.0)], 0.0)
            return
        covering = [
            (k, c) for k, c in absent.get(name, ()) if c.low < point < c.point and _meet(c.rows, rows)
        ]
        stripes = {c.rows for _, c in covering} | {columns.classes[n].rows for n in columns.of_buffer[name]}
        for stripe in sorted(stripes):
            if not _meet(stripe, rows):
                continue
            more = [(k, -1.0) for k, r in again if _meet(r, stripe)][:1]
            gone = [(k, 1.0) for k, c in covering if c.rows == stripe]
            if gone:
                self._ub.add([(j, 1.0), *gone, *more], 1.0)
                if not more:
                    for one, c in by_point[remake, point]:
                        if c.rows == rows:
                            for k, _ in gone:
                                self.conflicts[one].add(k - self._made0)
                                self.conflicts[k - self._made0].add(one)
            for number in columns.of_buffer[name]:
                of = columns.classes[number]
                if of.rows == stripe and of.last < step < of.next:
                    left = [(k, 1.0) for k in away[number] if columns.away[k].next > step]
                    self._ub.add([(j, 1.0), *gone, *left, *more], 1.0)

    @property
    def first_absent(self) -> int:
        return self._made0

    def bounds(self):
        _, low, high = self._problem()
        return low, high

    def _problem(self):
        cost = np.zeros(self._width)
        cost[self._waits0 :] = 1.0
        cost[: self._made0] = EPSILON * np.array(
            [self.columns.classes[c.number].nbytes / self._unit for c in self.columns.away]
        )
        low, high = np.zeros(self._width), np.full(self._width, np.inf)
        high[: self._tracks0] = 1.0
        high[sorted(self._forbidden)] = 0.0
        high[[self._track("out", 0), self._track("back", 0)]] = 0.0
        return cost, low, high

    def solve(self, low=None, high=None) -> Solution | None:
        cost, low_, high_ = self._problem()
        low = low_ if low is None else low
        high = high_ if high is None else high
        self.found = found = linprog(
            cost,
            A_ub=self._matrices[0],
            b_ub=self._ub.limits,
            A_eq=self._matrices[1],
            b_eq=self._eq.limits,
            bounds=np.stack((low, high), axis=1),
            method="highs",
        )
        if not found.success:
            return None
        x = found.x
        prices = -found.ineqlin.marginals[self._memory_rows] * self._unit_s / self._unit
        return Solution(
            float(x[self._waits0 :].sum()) * self._unit_s,
            x[: self._made0],
            x[self._made0 : self._runs0],
            x[self._blocks0 : self._tracks0],
            prices,
            (found.lower.marginals + found.upper.marginals)[self._made0 : self._runs0] * self._unit_s,
        )


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
