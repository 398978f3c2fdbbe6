"""Schedules built by hand, and what running one does found the slow way, to test the checker by."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from tvdnn.graph import Buffer, Direction, Graph, Kind, Network, Pass, Use
from tvdnn.planner.ir.plan import Plan
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Residency, Schedule, Space, Step

Bytes = npt.NDArray[np.uint64]  # one word for every byte of a space
FIXED_NBYTES = 1000


def buffer(name: str, rows: int, width: int, section: int, kind: Kind = Kind.MAP) -> Buffer:
    """A float32 buffer of `rows` rows of `width` channels."""
    return Buffer(name, kind, (rows, width), "float32", section)


def launchable(
    name: str,
    domain: int,
    unit: int,
    reads: Sequence[Use],
    writes: Sequence[Use],
    direction: Direction = Direction.FORWARD,
    *,
    params: tuple[str, ...] = (),
    updates: tuple[str, ...] = (),
    reduction: bool = False,
    effects: bool = False,
) -> Pass:
    """A pass whose op and role do not matter."""
    return Pass(
        name=name,
        op=name,
        role="run",
        direction=direction,
        domain=domain,
        unit=unit,
        reads=tuple(reads),
        writes=tuple(writes),
        params=params,
        updates=updates,
        reduction=reduction,
        effects=effects,
    )


def graph_of(
    buffers: Iterable[Buffer],
    passes: Iterable[Pass],
    inputs: Iterable[str],
    outputs: Iterable[str],
    cut: int | None = None,
    param_grads: Iterable[str] = (),
) -> Graph:
    """A graph of no network, with `FIXED_NBYTES` outside the arena."""
    maps, grads = tuple(outputs), tuple(param_grads)
    passes = tuple(passes)
    network = Network("hand", {}, (), {}, (), (), training=True)
    return Graph(
        traced=network,
        network=network,
        ops={},
        buffers={item.name: item for item in buffers},
        passes=passes,
        inputs={name: name for name in inputs},
        outputs=(*maps, *grads),
        output_maps=maps,
        input_grads={},
        param_grads={name: (name,) for name in grads},
        phase_split=len(passes) if cut is None else cut,
        fixed={"parameters": FIXED_NBYTES},
        dtype="fp32",
        chunk_size=128,
    )


@dataclass(slots=True)
class ScheduleMaker:
    """Collects steps in order; `place` gives addresses, the bytes that steps share the waits."""

    graph: Graph
    arena_nbytes: int
    slab_nbytes: int = 0
    steps: list[Step] = field(default_factory=list)
    _stays: list[tuple[str, int, int, list[int]]] = field(default_factory=list)
    _current: dict[tuple[str, int], int] = field(default_factory=dict)
    _cut: int | None = None

    def place(self, name: str, offset: int, sections: Iterable[int] | None = None) -> None:
        """New residencies of `sections` (all), the first at `offset`, the others behind it."""
        item = self.graph.buffers[name]
        for section in range(item.num_sections) if sections is None else sections:
            self._current[name, section] = len(self._stays)
            self._stays.append((name, section, offset, []))
            offset += item.section_nbytes(section)

    def launch(self, name: str, start: int, stop: int, *, recompute: bool = False) -> int:
        """A launch of the pass `name` over [start, stop); its index."""
        index = next(i for i, pass_ in enumerate(self.graph.passes) if pass_.name == name)
        pass_ = self.graph.passes[index]
        reads = tuple(self._operand(use, start, stop) for use in pass_.reads)
        writes = tuple(self._operand(use, start, stop) for use in pass_.writes)
        return self._add(
            Step(
                Lane.COMPUTE,
                Action.LAUNCH,
                index,
                index,
                start,
                stop,
                reads,
                writes,
                recompute=recompute,
            )
        )

    def offload(self, name: str, section: int, slab: int) -> int:
        """A copy of a section from where it is to byte `slab`."""
        here, there = self._section(name, section, slab)
        return self._copy(Lane.OFFLOAD, here, there)

    def prefetch(self, name: str, section: int, slab: int, offset: int) -> int:
        """A copy of a section from byte `slab` to a new residency at `offset`."""
        self.place(name, offset, (section,))
        here, there = self._section(name, section, slab)
        return self._copy(Lane.PREFETCH, there, here)

    def half(self) -> None:
        """Here the first half ends."""
        self._cut = len(self.steps)

    def build(self, *, budget: int | None = None, host_budget: int | None = None) -> Schedule:
        stays = tuple(
            Residency(
                name, section, offset, self.graph.buffers[name].section_nbytes(section), tuple(at)
            )
            for name, section, offset, at in self._stays
        )
        schedule = Schedule(
            graph=self.graph,
            plan=Plan("hand", ()),
            steps=tuple(self.steps),
            residencies=stays,
            phase_split=len(self.steps) if self._cut is None else self._cut,
            arena_nbytes=self.arena_nbytes,
            slab_nbytes=self.slab_nbytes,
            budget_nbytes=budget,
            host_budget_nbytes=host_budget,
        )
        return with_waits(schedule)

    def _operand(self, use: Use, start: int, stop: int) -> Operand:
        item = self.graph.buffers[use.buffer]
        first, end = use.rows(start, stop, item)
        for section in item.sections_of(first, end):
            self._use(use.buffer, section)
        offset = self._stays[self._current[use.buffer, first // item.section]][2]
        offset += first % item.section * item.row_nbytes
        nbytes = (end - first) * item.row_nbytes
        return Operand(use.buffer, first, end, Space.ARENA, offset, nbytes)

    def _section(self, name: str, section: int, slab: int) -> tuple[Operand, Operand]:
        self._use(name, section)
        item = self.graph.buffers[name]
        offset = self._stays[self._current[name, section]][2]
        here = Operand(
            name, *item.bounds(section), Space.ARENA, offset, item.section_nbytes(section)
        )
        return here, here._replace(space=Space.SLAB, offset=slab)

    def _use(self, name: str, section: int) -> None:
        steps = self._stays[self._current[name, section]][3]
        if len(self.steps) not in steps:
            steps.append(len(self.steps))

    def _copy(self, lane: Lane, source: Operand, target: Operand) -> int:
        rows = source.start, source.stop
        return self._add(Step(lane, Action.COPY, 0, -1, *rows, (source,), (target,)))

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1


def with_waits(schedule: Schedule) -> Schedule:
    """The schedule with the waits, and no more, that order every two steps that share bytes."""
    sharers: list[list[int]] = [[] for _ in schedule.steps]
    for first, second in conflicts(schedule):
        sharers[second].append(first)
    order = _Order(len(schedule.steps), schedule.phase_split)
    steps = []
    for index, step in enumerate(schedule.steps):
        order.add(index, step.lane, ())
        waits = []
        for other in reversed(sharers[index]):
            if not order.before[other, index]:
                order.put_before(other, index)
                waits.append(other)
        steps.append(step._replace(waits=tuple(sorted(waits))))
    return replace(schedule, steps=tuple(steps))


def happens_before(schedule: Schedule) -> npt.NDArray[np.bool_]:
    """[s, t]: step s ends before step t starts, by lanes, waits on earlier steps, and the cut."""
    order = _Order(len(schedule.steps), schedule.phase_split)
    for index, step in enumerate(schedule.steps):
        order.add(index, step.lane, (wait for wait in step.waits if 0 <= wait < index))
    return order.before


class _Order:
    """The closure of happens-before over the steps added so far."""

    def __init__(self, count: int, cut: int) -> None:
        self.before = np.zeros((count, count), np.bool_)
        self._cut = cut
        self._last: dict[Lane, int] = {}

    def add(self, index: int, lane: Lane, waits: Iterable[int]) -> None:
        """Put step `index` behind its lane, its waits and, in the second half, the first."""
        for other in (*waits, *((self._last[lane],) if lane in self._last else ())):
            self.put_before(other, index)
        self._last[lane] = index
        if index >= self._cut:
            self.before[: self._cut, index] = True

    def put_before(self, first: int, second: int) -> None:
        self.before[:, second] |= self.before[:, first]
        self.before[first, second] = True


def conflicts(schedule: Schedule) -> list[tuple[int, int]]:
    """Pairs of steps (s, t), s before t in the tuple, that share bytes which one of them writes."""
    rows = [
        (index, writes, operand.space, operand.offset, operand.end)
        for index, step in enumerate(schedule.steps)
        for writes, operands in enumerate((step.reads, step.writes))
        for operand in operands
    ]
    step, writes, space, start, end = np.array(rows, np.int64).reshape(-1, 5).T[:, :, None]
    meets = (step < step.T) & (writes | writes.T).astype(bool) & (space == space.T)
    meets &= (start < end.T) & (end > start.T)
    first, second = np.nonzero(meets)
    return sorted({(int(s), int(t)) for s, t in zip(step[first, 0], step[second, 0], strict=True)})


def races(schedule: Schedule) -> bool:
    """Whether two steps that share bytes may run in either order."""
    order = happens_before(schedule)
    return any(not order[s, t] for s, t in conflicts(schedule))


def results(schedule: Schedule) -> Mapping[str, int]:
    """Digests of the outputs and of the parameters after the steps ran in the tuple's order.

    Every kernel is a hash of all that it reads, so that a wrong byte anywhere shows.
    """
    machine = _Machine(schedule)
    halves = (0, schedule.phase_split), (schedule.phase_split, len(schedule.steps))
    for first, end in halves:
        machine.fill(first, end)
        for index in range(first, end):
            machine.run(schedule.steps[index])
        machine.take(first, end)
    return machine.found


def _digest(*values: object) -> int:
    state = blake2b(digest_size=8)
    for value in values:
        state.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return int.from_bytes(state.digest(), "little")


def _words(seed: int, count: int) -> Bytes:
    return np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)


class _Machine:
    """Both spaces, a word for every byte, and a version for every parameter."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._graph = schedule, schedule.graph
        self._spaces = [_words(1, schedule.arena_nbytes), _words(2, schedule.slab_nbytes)]
        self.found: dict[str, int] = {}

    def fill(self, first: int, end: int) -> None:
        stays = {(s.buffer, s.section): s for s in reversed(self._schedule.residencies)}
        for (name, section), stay in stays.items():
            if name in self._graph.inputs and first <= stay.steps[0] < end:
                words = _words(_digest(name, section), stay.nbytes)
                self._spaces[Space.ARENA][stay.offset : stay.offset + stay.nbytes] = words

    def take(self, first: int, end: int) -> None:
        for stay in self._schedule.residencies:
            if stay.buffer in self._graph.outputs and first <= stay.steps[-1] < end:
                words = self._spaces[Space.ARENA][stay.offset : stay.offset + stay.nbytes]
                self.found[f"{stay.buffer} {stay.section}"] = _digest(words)

    def run(self, step: Step) -> None:
        if step.action is Action.COPY:
            self._view(step.writes[0])[:] = self._view(step.reads[0])
            return
        unit = self._graph.passes[step.pass_index].unit
        for start in range(step.start, step.stop, unit):
            self._run_unit(step, start, min(step.stop, start + unit))

    def _view(self, operand: Operand) -> Bytes:
        return self._spaces[operand.space][operand.offset : operand.end]

    def _rows(self, use: Use, operand: Operand, start: int, stop: int) -> Bytes:
        """The rows and channels that the use touches for domain rows [start, stop)."""
        item = self._graph.buffers[use.buffer]
        first, end = use.rows(start, stop, item)
        rows = self._view(operand).reshape(-1, item.row_nbytes)
        low, high = (4 * c for c in use.channels or (0, item.row_nbytes // 4))
        return rows[first - operand.start : end - operand.start, low:high]

    def _run_unit(self, step: Step, start: int, stop: int) -> None:
        pass_ = self._graph.passes[step.pass_index]
        reads = zip(pass_.reads, step.reads, strict=True)
        params = [self.found.get(name, 0) for name in pass_.params]
        parts = [self._rows(use, operand, start, stop).copy() for use, operand in reads]
        value = _digest(pass_.name, start, stop, params, *parts)
        for number, (use, operand) in enumerate(zip(pass_.writes, step.writes, strict=True)):
            rows = self._rows(use, operand, start, stop)
            kept = _digest(rows.copy()) if use.whole and start else 0
            rows[:] = _words(_digest(value, number, kept), rows.size).reshape(rows.shape)
        for name in () if step.recompute else pass_.updates:
            self.found[name] = _digest(self.found.get(name, 0), value)


def story(*, partial_apart: bool = True) -> Schedule:
    """A step of two convolutions with a map offloaded and back; 8 rows in units of 2.

    The map `a` leaves for the slab and returns over `x`, its bytes go to `gb`; `a` and `gb` are
    changed in place; partial sums share two places, or with `partial_apart` lie side by side.
    """
    maker = ScheduleMaker(_story_graph(), arena_nbytes=2560, slab_nbytes=512)
    maker.place("x", 0)
    maker.place("w", 512)
    maker.launch("pack", 0, 8)
    maker.place("a", 1024)
    maker.place("b", 1536)
    for start in (0, 4):
        maker.launch("conv", start, start + 4)
        maker.launch("relu", start, start + 4)
    for section in range(4):
        maker.offload("a", section, 128 * section)
    for start in (0, 4):
        maker.launch("conv2", start, start + 4)
    maker.place("loss", 2048)
    for start in (0, 4):
        maker.launch("loss", start, start + 4)
    maker.place("gb", 1024)
    maker.launch("loss_grad", 0, 8)
    maker.place("gw", 2112)
    for section in range(4):
        maker.prefetch("a", section, 128 * section, 128 * section)
        partial = 2176 + 64 * (section if partial_apart else section % 2)
        maker.place("partial", partial, (section,))
        maker.launch("grad_weight", 2 * section, 2 * section + 2)
        maker.launch("relu_grad", 2 * section, 2 * section + 2)
        maker.launch("sum", 2 * section, 2 * section + 2)
    maker.launch("update", 0, 8)
    return maker.build(budget=2560 + FIXED_NBYTES, host_budget=512)


def _story_graph() -> Graph:
    maps = [buffer(name, 8, 16, 2) for name in ("a", "b")]
    rest = [
        buffer("x", 8, 16, 2, Kind.INPUT),
        buffer("gb", 8, 16, 2, Kind.GRAD),
        buffer("w", 1, 16, 1, Kind.WEIGHT),
        buffer("loss", 1, 16, 1, Kind.AUX),
        buffer("partial", 4, 16, 1, Kind.PARTIAL),
        buffer("gw", 1, 16, 1, Kind.PARAM_GRAD),
    ]
    whole = {name: Use(name, whole=True) for name in ("w", "loss", "gw")}
    a, b, gb, partial = Use("a"), Use("b"), Use("gb"), Use("partial", per=2)
    back = Direction.BACKWARD
    passes = [
        launchable("pack", 8, 8, (), (whole["w"],), params=("weight",)),
        launchable("conv", 8, 2, (Use("x"), whole["w"]), (a,)),
        launchable("relu", 8, 2, (a,), (a,)),
        launchable("conv2", 8, 2, (a, whole["w"]), (b,)),
        launchable("loss", 8, 2, (b,), (whole["loss"],), reduction=True),
        launchable("loss_grad", 8, 2, (b, whole["loss"]), (gb,), back),
        launchable("grad_weight", 8, 2, (a, gb), (partial,), back),
        launchable("relu_grad", 8, 2, (a, gb), (gb,), back),
        launchable("sum", 8, 2, (partial,), (whole["gw"],), back, reduction=True),
        launchable("update", 8, 8, (whole["gw"],), (), Direction.UPDATE, updates=("weight",)),
    ]
    return graph_of((*maps, *rest), passes, ("x",), ("loss",))
