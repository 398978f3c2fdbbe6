"""Schedules built by hand, step by step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.support.schedules.order import with_waits
from tvdnn.graph import (
    RAW,
    Buffer,
    Direction,
    Form,
    Graph,
    Kind,
    Network,
    Pass,
    Use,
    in_form,
    is_packed,
    tail_of,
)
from tvdnn.planner.ir.costs import Forms
from tvdnn.planner.ir.plan import Bridge, Plan
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Residency, Schedule, Space, Step

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
    bridges: list[Bridge] = field(default_factory=list)  # of the plan, for reports
    _stays: list[tuple[str, int, int, list[int], Form]] = field(default_factory=list)
    _current: dict[tuple[str, int, Form], int] = field(default_factory=dict)
    _cut: int | None = None
    _counts: int = 0

    def place(
        self, name: str, offset: int, sections: Iterable[int] | None = None, form: Form = RAW
    ) -> None:
        """New residencies of `sections` (all), the first at `offset`, the others behind it."""
        item = in_form(self.graph.buffers[name], form)
        for section in range(item.num_sections) if sections is None else sections:
            self._current[name, section, form] = len(self._stays)
            self._stays.append((name, section, offset, [], form))
            offset += item.section_nbytes(section)

    def launch(
        self, name: str, start: int, stop: int, forms: Forms = (), *, recompute: bool = False
    ) -> int:
        """A launch of the pass `name` over [start, stop) that reads and leaves `forms`."""
        index = next(i for i, pass_ in enumerate(self.graph.passes) if pass_.name == name)
        pass_ = self.graph.passes[index]
        chosen = dict(forms)
        read = ((use, chosen.get(use.buffer, RAW)) for use in pass_.reads)
        reads = tuple(
            self._operand(use, start, stop, form if form in use.forms else RAW)
            for use, form in read
        )
        codes = [
            (use, form) for use in pass_.writes for form in use.also if (use.buffer, form) in forms
        ]
        writes = tuple(
            self._operand(use, start, stop, form)
            for use, form in [*((use, RAW) for use in pass_.writes), *codes]
        )
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

    def offload(self, name: str, section: int, slab: int, form: Form = RAW) -> int:
        """A copy of a section from where it is to byte `slab`."""
        here, there = self._section(name, section, slab, form)
        return self._copy(Lane.OFFLOAD, here, there)

    def prefetch(self, name: str, section: int, slab: int, offset: int, form: Form = RAW) -> int:
        """A copy of a section from byte `slab` to a new residency at `offset`."""
        self.place(name, offset, (section,), form)
        here, there = self._section(name, section, slab, form)
        return self._copy(Lane.PREFETCH, there, here)

    def to_file(self, name: str, section: int, slab: int, file: int) -> int:
        """A copy of a section from byte `slab` to byte `file` of the file."""
        bounce = self._away(name, section, Space.SLAB, slab)
        return self._copy(Lane.FILE_WRITE, bounce, bounce._replace(space=Space.FILE, offset=file))

    def from_file(self, name: str, section: int, file: int, slab: int) -> int:
        """A copy of a section from byte `file` of the file to byte `slab`."""
        bounce = self._away(name, section, Space.SLAB, slab)
        return self._copy(Lane.FILE_READ, bounce._replace(space=Space.FILE, offset=file), bounce)

    def to_peer(self, name: str, section: int, peer: int) -> int:
        """A copy of a section from where it is to byte `peer` of the peer's arena."""
        here, _ = self._section(name, section, peer, RAW)
        return self._copy(Lane.PEER_OFFLOAD, here, self._away(name, section, Space.PEER, peer))

    def from_peer(self, name: str, section: int, peer: int, offset: int) -> int:
        """A copy of a section from byte `peer` to a new residency at `offset`."""
        self.place(name, offset, (section,))
        here, _ = self._section(name, section, peer, RAW)
        return self._copy(Lane.PEER_PREFETCH, self._away(name, section, Space.PEER, peer), here)

    def _away(self, name: str, section: int, space: Space, offset: int) -> Operand:
        item = self.graph.buffers[name]
        nbytes = item.section_nbytes(section)
        return Operand(name, *item.bounds(section), space, offset, nbytes)

    def _end(self, space: Space) -> int:
        """The end of the last bytes that steps use in a space."""
        uses = (each for step in self.steps for each in (*step.reads, *step.writes))
        return max((each.end for each in uses if each.space is space), default=0)

    def recode(
        self, name: str, start: int, stop: int, source: Form, target: Form, tail: int = 0
    ) -> int:
        """A recode of rows [start, stop), which are whole sections, in both forms in place.

        The tail of a packed code lies at byte `tail` of the slab.
        """
        rows = Use(name), start, stop
        read, written = (self._operand(*rows, form) for form in (source, target))
        held = self._tail(source if target == RAW else target, written, tail)
        reads, writes = (
            ((read, *held), (written,)) if target == RAW else ((read,), (written, *held))
        )
        counted = is_packed(target)
        word, self._counts = (self._counts, self._counts + 1) if counted else (-1, self._counts)
        step = Step(Lane.COMPUTE, Action.RECODE, 0, -1, start, stop, reads, writes, count_word=word)
        return self._add(step)

    def _tail(self, code: Form, rows: Operand, offset: int) -> tuple[Operand, ...]:
        """The tail of the code of some rows, if it has one."""
        form = tail_of(self.graph.buffers[rows.buffer], code)
        if form is None:
            return ()
        row_nbytes = in_form(self.graph.buffers[rows.buffer], form).row_nbytes
        nbytes = (rows.stop - rows.start) * row_nbytes
        return (Operand(*rows[:3], Space.SLAB, offset, nbytes, form),)

    def half(self) -> None:
        """Here the first half ends."""
        self._cut = len(self.steps)

    def build(self, *, budget: int | None = None, host_budget: int | None = None) -> Schedule:
        stays = tuple(
            Residency(
                name,
                section,
                offset,
                in_form(self.graph.buffers[name], form).section_nbytes(section),
                tuple(at),
                form,
            )
            for name, section, offset, at, form in self._stays
        )
        schedule = Schedule(
            graph=self.graph,
            plan=Plan("hand", (), tuple(self.bridges)),
            steps=tuple(self.steps),
            residencies=stays,
            phase_split=len(self.steps) if self._cut is None else self._cut,
            arena_nbytes=self.arena_nbytes,
            slab_nbytes=self.slab_nbytes,
            budget_nbytes=budget,
            host_budget_nbytes=host_budget,
            num_counts=self._counts,
            file_nbytes=self._end(Space.FILE),
            peer_nbytes=self._end(Space.PEER),
        )
        return with_waits(schedule)

    def _operand(self, use: Use, start: int, stop: int, form: Form = RAW) -> Operand:
        item = in_form(self.graph.buffers[use.buffer], form)
        first, end = use.rows(start, stop, item)
        for section in item.sections_of(first, end):
            self._use(use.buffer, section, form)
        offset = self._stays[self._current[use.buffer, first // item.section, form]][2]
        offset += first % item.section * item.row_nbytes
        nbytes = (end - first) * item.row_nbytes
        return Operand(use.buffer, first, end, Space.ARENA, offset, nbytes, form)

    def _section(self, name: str, section: int, slab: int, form: Form) -> tuple[Operand, Operand]:
        self._use(name, section, form)
        item = in_form(self.graph.buffers[name], form)
        offset = self._stays[self._current[name, section, form]][2]
        nbytes = item.section_nbytes(section)
        here = Operand(name, *item.bounds(section), Space.ARENA, offset, nbytes, form)
        return here, here._replace(space=Space.SLAB, offset=slab)

    def _use(self, name: str, section: int, form: Form) -> None:
        steps = self._stays[self._current[name, section, form]][3]
        if len(self.steps) not in steps:
            steps.append(len(self.steps))

    def _copy(self, lane: Lane, source: Operand, target: Operand) -> int:
        rows = source.start, source.stop
        return self._add(Step(lane, Action.COPY, 0, -1, *rows, (source,), (target,)))

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1
