"""The swap problem as a linear program: how many sections leave, and by which launch.

Launches keep their order. By launch it counts the bytes that have left and returned so far and the
seconds until the next may start. Copies of one direction follow each other in the order of last or
first uses. Sums over all sections then say what each of them does: a few variables a launch,
however many the maps. A section may leave in part, and frees at once what has left. A section that
the host still has leaves without a copy. Whole sections, copies in flight and placement only add
seconds: no schedule of these launches and idle intervals takes less time.

The integer program asks for whole sections. tvDNN's has not been published; this is ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from ...graph import Form
from ..ir.costs import Costs, Link
from ..ir.plan import HOST
from ..lowering.idle import IdleInterval
from ..lowering.launch_limits import MemoryLimit
from ..lowering.list_scheduler import required_nbytes
from ..lowering.program import Program

COMPUTE, LINK, MEMORY = "compute", "link", "memory"
EPSILON = 1e-7  # of the step, as the price of an offloaded section: none is offloaded in vain
SENSITIVITY_STEP = 0.01  # share of a resource by which sensitivities raise it
ILP_LIMIT_S, ILP_NODES = 5.0, 100  # of one integer program
ILP_GAP = 0.005  # share by which it may miss the optimum; 0.002 takes 16 s for no faster plans
TRACKS = ("out", "back", "free", "idle", "final", "due")

Array: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = npt.NDArray[np.int64]
SectionClass: TypeAlias = tuple[IdleInterval, ...]
Times: TypeAlias = tuple[tuple[int, int], ...]
Terms: TypeAlias = Sequence[tuple[Numbers, Array | float]]


@dataclass(frozen=True, slots=True)
class LpBound:
    """The optimum of the linear program."""

    step_s: float  # the fewest seconds of a step
    counts: tuple[float, ...]  # offloaded sections by class
    sensitivities: Mapping[str, float]  # seconds saved by 1% more compute, link, memory or host


def section_classes(intervals: Iterable[IdleInterval]) -> tuple[SectionClass, ...]:
    """Equal sections of a buffer that are idle between the same launches, by their last use.

    All their idle intervals are the same. Two classes share all of their sections or none.
    """
    sections: dict[tuple[str, int, Form], list[IdleInterval]] = {}
    for idle in intervals:
        sections.setdefault(idle.key, []).append(idle)
    found: dict[tuple[str, Form, int, int, Times], list[IdleInterval]] = {}
    for (buffer, _, form), members in sections.items():
        times = tuple((idle.last, idle.next) for idle in members)
        for number, idle in enumerate(members):
            found.setdefault((buffer, form, number, idle.nbytes, times), []).append(idle)
    return tuple(map(tuple, sorted(found.values(), key=lambda members: members[0].last)))


def copied_before(members: Sequence[SectionClass]) -> Mapping[int, Sequence[int]]:
    """By number of a class that may be clean, the classes before it of the same sections.

    Nothing writes the sections between the two.
    """
    found: dict[int, Sequence[int]] = {}
    alike: dict[tuple[str, int, Form], list[int]] = {}
    for number, (idle, *_) in enumerate(members):
        others = alike.setdefault(idle.key, [])
        before = [other for other in others if idle.final_after <= members[other][0].last]
        if before:
            found[number] = before
        others.append(number)
    return found


class _Rows:
    """Sparse rows, collected many at a time."""

    def __init__(self, num_columns: int) -> None:
        self._num_columns = num_columns
        self._places: list[tuple[Numbers, Numbers, Array]] = []
        self._limits: list[Array] = []
        self._count = 0

    def add(self, terms: Terms, limit: Array | float, count: int) -> slice:
        """`count` rows, each the sum of its columns times their values; where they are."""
        rows = np.arange(self._count, self._count + count)
        for columns, values in terms:
            self._places.append((rows, columns, np.broadcast_to(values, (count,))))
        self._limits.append(np.broadcast_to(limit, (count,)))
        self._count += count
        return slice(self._count - count, self._count)

    def scatter(self, rows: Numbers, columns: Numbers, values: Array) -> None:
        """More values in rows that are there."""
        self._places.append((rows, columns, values))

    @property
    def matrix(self) -> csr_array:
        rows, columns, values = (np.concatenate(parts) for parts in zip(*self._places, strict=True))
        return csr_array((values, (rows, columns)), shape=(self._count, self._num_columns))

    @property
    def limits(self) -> Array:
        return np.concatenate(self._limits)


class SwapLP:
    """Which of the `members` leave, so that a program's launches find their bytes within `limits`.

    Columns are, by class, the sections that leave, and of those that may be clean how many are;
    then by launch, for what had happened before it, the bytes that went out, came back and freed
    memory, and those of what leaves that are idle, final and due; then by launch the seconds from
    its start to the next one's. Clean bytes count as gone out as soon as they are idle. Bytes are
    counted in those that must leave, seconds in those of all launches, so that numbers are about
    one.
    """

    def __init__(
        self,
        program: Program,
        costs: Costs,
        members: Sequence[SectionClass],
        limits: MemoryLimit,
        host_budget: int | None = None,
    ) -> None:
        required = required_nbytes(program).astype(np.float64)
        launch_s = program.launch_seconds(costs)
        self._unit_s = sum(launch_s)
        self._unit_nbytes = max(1.0, float((required - limits).max(initial=0)))
        self._limits = np.broadcast_to(limits, required.shape) / self._unit_nbytes
        self._seconds = np.array(launch_s) / self._unit_s
        self._sizes = np.array([each[0].nbytes for each in members]) / self._unit_nbytes
        self._members, self._num = members, len(launch_s)
        self._last = np.array([each[0].last for each in members], np.int64)
        self._final = np.array([each[0].final_after for each in members], np.int64)
        before = copied_before(members)
        self._clean = np.array(list(before), np.int64)  # classes that may be clean
        self._clean_columns = len(members) + np.arange(len(before))
        self._first_track = len(members) + len(before)
        self._first_wait = self._first_track + len(TRACKS) * (self._num + 1)
        self._width = self._first_wait + self._num
        self._sums, self._rows = _Rows(self._width), _Rows(self._width)
        self._add_sums()
        self._add_clean(before)
        self._add_order()
        self._memory_rows = self._add_memory((limits - required) / self._unit_nbytes)
        self._host_rows = self._add_host(host_budget)
        self._link_rows = self._add_link(costs.links[HOST])

    def lp_bound(self) -> LpBound | None:
        """The optimum of the linear program; None where it has no solution."""
        low, high = self._bounds
        found = linprog(
            self._objective,
            A_ub=self._rows.matrix,
            b_ub=self._rows.limits,
            A_eq=self._sums.matrix,
            b_eq=self._sums.limits,
            bounds=np.stack((low, high), axis=1),
        )
        if not found.success:
            return None
        step_s = float(found.x[self._first_wait :].sum()) * self._unit_s
        counts = tuple(found.x[: len(self._members)].tolist())
        return LpBound(step_s, counts, self._sensitivities(found.x, found.ineqlin.marginals))

    def integer_counts(self) -> tuple[float, ...] | None:
        """How many whole sections of each class leave, by branching; None without a solution."""
        found = milp(
            self._objective,
            integrality=np.arange(self._width) < len(self._members),
            bounds=Bounds(*self._bounds),
            constraints=(
                LinearConstraint(self._rows.matrix, -np.inf, self._rows.limits),
                LinearConstraint(self._sums.matrix, self._sums.limits, self._sums.limits),
            ),
            options={"time_limit": ILP_LIMIT_S, "node_limit": ILP_NODES, "mip_rel_gap": ILP_GAP},
        )
        return None if found.x is None else tuple(found.x[: len(self._members)].round().tolist())

    @property
    def _objective(self) -> Array:
        return np.where(
            np.arange(self._width) >= self._first_wait,
            1.0,
            np.where(np.arange(self._width) < len(self._members), EPSILON, 0.0),
        )

    @property
    def _bounds(self) -> tuple[Array, Array]:
        low, high = np.zeros(self._width), np.full(self._width, np.inf)
        high[: len(self._members)] = [len(each) for each in self._members]
        high[self._clean_columns] = high[self._clean]
        high[[self._track(name)[0] for name in ("out", "back")]] = 0.0
        low[self._first_wait :] = self._seconds
        return low, high

    def _track(self, name: str) -> Numbers:
        """Columns of what had happened before each launch, and before the end."""
        start = self._first_track + TRACKS.index(name) * (self._num + 1)
        return np.arange(start, start + self._num + 1)

    def _add_sums(self) -> None:
        """What is idle, final or due before a launch: as before the last one, and what is new."""
        begins = {
            "idle": self._last + 1,
            "final": self._final + 1,
            "due": np.array([each[0].next for each in self._members], np.int64),
        }
        columns = np.arange(len(self._members))
        for name, launches in begins.items():
            track = self._track(name)
            rows = self._sums.add([(track, 1.0)], 0.0, self._num + 1)
            numbers = np.arange(rows.start, rows.stop)
            self._sums.scatter(numbers[1:], track[:-1], np.full(self._num, -1.0))
            self._sums.scatter(numbers[launches], columns, -self._sizes)
            if name == "final":
                sizes = self._sizes[self._clean]
                for ended, sign in ((self._final, 1.0), (self._last, -1.0)):
                    since = numbers[ended[self._clean] + 1]
                    self._sums.scatter(since, self._clean_columns, sign * sizes)

    def _add_clean(self, before: Mapping[int, Sequence[int]]) -> None:
        """Clean is no more than leaves, nor than was copied before."""
        columns = self._clean_columns
        self._rows.add([(columns, 1.0), (self._clean, -1.0)], 0.0, len(before))
        rows = self._rows.add([(columns, 1.0)], 0.0, len(before))
        column = dict(zip(before, columns.tolist(), strict=True))
        for row, others in zip(range(rows.start, rows.stop), before.values(), strict=True):
            copies = [(other, -1.0) for other in others]
            copies += [(column[other], 1.0) for other in others if other in column]
            copied, values = zip(*copies, strict=True)
            where = np.full(len(copies), row), np.array(copied, np.int64), np.array(values)
            self._rows.scatter(*where)

    def _add_order(self) -> None:
        """What frees memory is idle and out, what goes out is final, what is due is back.

        Nothing comes back that has not freed memory, and all tracks only rise.
        """
        pairs = (
            ("free", "out"),
            ("free", "idle"),
            ("out", "final"),
            ("due", "back"),
            ("back", "free"),
        )
        for less, more in pairs:
            terms = [(self._track(less), 1.0), (self._track(more), -1.0)]
            self._rows.add(terms, 0.0, self._num + 1)
        for name in ("out", "back"):
            track = self._track(name)
            rows = self._rows.add([(track[:-1], 1.0), (track[1:], -1.0)], 0.0, self._num)
            if name == "out":
                self._no_copies(rows, -1.0)

    def _no_copies(self, rows: slice, share: float) -> None:
        """Of what goes out from a launch to the next, take this share of the clean bytes back."""
        numbers = np.arange(rows.start, rows.stop)[self._last[self._clean]]
        self._rows.scatter(numbers, self._clean_columns, -share * self._sizes[self._clean])

    def _add_memory(self, spare: Array) -> slice:
        """What is back and not free takes no more than each launch leaves, with nothing moved."""
        terms = [(self._track("back")[:-1], 1.0), (self._track("free")[:-1], -1.0)]
        return self._rows.add(terms, spare, self._num)

    def _add_host(self, host_budget: int | None) -> slice:
        """What is out and not back takes no more than the host has."""
        if host_budget is None:
            return slice(0, 0)
        terms = [(self._track("out"), 1.0), (self._track("back"), -1.0)]
        return self._rows.add(terms, host_budget / self._unit_nbytes, self._num + 1)

    def _add_link(self, link: Link) -> list[tuple[slice, float]]:
        """No more goes each way from a launch to the next than the link takes.

        A way has its rate alone less in proportion to what goes the other way meanwhile. Gives the
        rows, and by how much a second raises their limits.
        """
        largest = max((idle.nbytes for each in self._members for idle in each), default=1)
        alone = [self._rate(rate, largest, link) for rate in (link.out, link.back)]
        both = [self._rate(rate, largest, link) for rate in (link.out_duplex, link.back_duplex)]
        if both[0] / alone[0] + both[1] / alone[1] < 1.0:  # then taking turns is faster
            both = [rate / 2 for rate in alone]
        waits = np.arange(self._first_wait, self._width)
        tracks = [self._track(name) for name in ("out", "back")]
        rows: list[tuple[slice, float]] = []
        for way in (0, 1):
            loss = (alone[way] - both[way]) / both[1 - way]
            ours, theirs = tracks[way], tracks[1 - way]
            terms = [(ours[1:], 1.0), (ours[:-1], -1.0), (waits, -alone[way])]
            terms += [(theirs[1:], loss), (theirs[:-1], -loss)]
            rows.append((self._rows.add(terms, 0.0, self._num), alone[way]))
            self._no_copies(rows[-1][0], (1.0, loss)[way])
        return rows

    def _rate(self, rate: float, largest: int, link: Link) -> float:
        """Of the largest sections, which lose least to the latency."""
        return largest / (largest / rate + link.latency_s) * self._unit_s / self._unit_nbytes

    def _sensitivities(self, found: Array, marginals: Array) -> Mapping[str, float]:
        """What more of each would save, by the prices of its rows."""
        waits, prices, limits = found[self._first_wait :], -marginals, self._rows.limits
        stalls = waits > self._seconds * (1 + EPSILON)
        saved = {
            COMPUTE: float(self._seconds[~stalls].sum()),
            LINK: sum(float(prices[rows] @ (alone * waits)) for rows, alone in self._link_rows),
            MEMORY: float(prices[self._memory_rows] @ self._limits),
            HOST: float(prices[self._host_rows] @ limits[self._host_rows]),
        }
        return {name: SENSITIVITY_STEP * share * self._unit_s for name, share in saved.items()}
