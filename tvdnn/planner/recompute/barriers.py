"""Barrier stages: layers that normalize over the batch, run by block once for each of them.

A batch normalization is a barrier: no block of samples passes it before all have come so far. All
blocks run up to the first barrier, one after the other. Then all start again, pass it and run up to
the next. The maps between are recomputed in every stage and never exist for the whole batch. Where
a map hardly fits the device, that takes less time than to copy it. Backward has a stage for each
normalization's sums, and recomputes forward's maps and its own gradients.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ...graph import Direction, Graph, Kind, Pass
from ...graph.dataflow import Producers, producers
from ..ir.costs import Costs
from ..ir.plan import Slot
from .regions import (
    Recompute,
    cannot_join,
    extent_of,
    goes_by_sample,
    spans_of,
    users_of,
)

BETWEEN = (Kind.MAP, Kind.GRAD)
AHEAD = -1  # the stage of passes that need none


@dataclass(frozen=True, slots=True)
class BarrierStage:
    """Passes between two barriers."""

    slots: tuple[Slot, ...]  # go through each block together
    behind: tuple[int, ...]  # run behind these, once for all samples


@dataclass(frozen=True, slots=True)
class Phase:
    """The passes of one direction."""

    passes: range  # all of them, in program order
    ahead: tuple[Slot, ...]
    stages: tuple[BarrierStage, ...]
    after: tuple[int, ...]

    @property
    def recomputed(self) -> list[int]:
        """The passes that run again, as often as they do."""
        slots = (*self.ahead, *(slot for each in self.stages for slot in each.slots))
        return [slot.pass_index for slot in slots if slot.recompute]


@dataclass(frozen=True, slots=True)
class StagedGroup:
    """Neighbouring ops in stages; the maps that these recompute never exist for the whole batch."""

    forward: Phase
    backward: Phase
    recompute: Recompute

    @property
    def passes(self) -> frozenset[int]:
        return frozenset((*self.forward.passes, *self.backward.passes))


def barrier_stages(
    graph: Graph, costs: Costs, groups: Iterable[Sequence[str]], least_nbytes: float
) -> Iterator[StagedGroup]:
    """The groups of ops that can go in stages, share no pass and save enough bytes of maps."""
    if graph.row_tiles > 1:
        return
    spans, uses, passes_of_stages = spans_of(graph), _Uses(graph), set[int]()
    for group in groups:
        phases = [extent_of(spans, group, way) for way in (Direction.FORWARD, Direction.BACKWARD)]
        if all(phases) and all(passes_of_stages.isdisjoint(phase) for phase in phases):
            found = _OpGroup(graph, uses, *phases).stages(costs)
            if found is not None and found.recompute.nbytes > least_nbytes:
                passes_of_stages |= found.passes
                yield found


class _Uses:
    """The producers of what each pass reads; users and changes of each buffer and parameter."""

    def __init__(self, graph: Graph) -> None:
        self.producers: Producers = producers(graph)
        self.users = users_of(graph)
        self._changes: dict[str, list[int]] = {}
        for index, pass_ in enumerate(graph.passes):
            for name in {*pass_.written_buffers, *pass_.updates}:
                self._changes.setdefault(name, []).append(index)

    def changes(self, name: str, after: int, before: int) -> bool:
        """Whether a pass between these two changes the buffer or parameter."""
        return any(after < index < before for index in self._changes.get(name, ()))


class _OpGroup:
    """The passes of a group of ops in both directions, and the buffers that they alone use."""

    def __init__(self, graph: Graph, uses: _Uses, forward: range, backward: range) -> None:
        self._graph = graph
        self._uses = uses
        self._producers = uses.producers
        self._phases = forward, backward
        members = frozenset((*forward, *backward))
        passes = [graph.passes[index] for index in members]
        made = frozenset(name for pass_ in passes for name in pass_.written_buffers)
        partly = (w.buffer for pass_ in passes for w in pass_.writes if w.channels is not None)
        given = frozenset((*graph.inputs, *partly))
        self._own = frozenset(name for name in made - given if uses.users[name] <= members)
        at_once = frozenset(name for pass_ in passes for name in _whole_uses(pass_))
        self._between = frozenset(
            name for name in self._own - at_once if graph.buffers[name].kind in BETWEEN
        )
        self._level: dict[int, int] = {}

    def stages(self, costs: Costs) -> StagedGroup | None:
        """The group in stages; None where there would be one, or a pass cannot run again."""
        forward, backward = (self._phase(phase) for phase in self._phases)
        if forward is None or backward is None or len(forward.stages) < 2:
            return None
        recomputed = [
            self._graph.passes[index] for phase in (forward, backward) for index in phase.recomputed
        ]
        seconds = sum(costs.launch_s(pass_, pass_.domain) for pass_ in recomputed)
        names = self._between & frozenset(
            name for pass_ in recomputed for name in pass_.written_buffers
        )
        maps = [b for b in map(self._graph.buffers.__getitem__, names) if b.kind is Kind.MAP]
        nbytes = sum(buffer.nbytes for buffer in maps)
        recompute = Recompute(frozenset(buffer.name for buffer in maps), nbytes, seconds)
        return StagedGroup(forward, backward, recompute)

    def _phase(self, phase: range) -> Phase | None:
        """One direction in stages; None where a pass cannot run again."""
        if not self._levelled(phase):
            return None
        stages: list[BarrierStage] = []
        for number in range(1 + max(self._level[i] for i in phase if i in self._level)):
            found = self._stage(phase, number)
            if found is None:
                return None
            stages.append(found)
        recomputed = {slot.pass_index for each in stages for slot in each.slots if slot.recompute}
        if not all(self._finds_alike(index, phase) for index in recomputed - {*phase}):
            return None
        ahead = [Slot(index, recompute=True) for index in self._packs(recomputed - {*phase})]
        ahead += [Slot(index) for index in phase if self._level.get(index) == AHEAD]
        after = tuple(index for index in phase if index not in self._level)
        made = Phase(phase, tuple(ahead), tuple(stages), after)
        return made if self._keeps_order(made) else None

    def _levelled(self, phase: range) -> bool:
        """Give every pass of the phase its stage. Whether all can have one, and any does.

        A pass that changes parameters comes after all stages. Nothing may read these then.
        """
        changed: set[str] = set()
        for index in phase:
            pass_ = self._graph.passes[index]
            if changed & set(pass_.params):
                return False
            changed |= set(pass_.updates)
            if not _changes_parameters(pass_):
                self._level[index] = max(self._since(phase, index), default=self._first(index))
        return any(self._level[i] > AHEAD for i in phase if i in self._level)

    def _first(self, index: int) -> int:
        return 0 if goes_by_sample(self._graph.passes[index]) else AHEAD

    def _since(self, phase: range, index: int) -> Iterator[int]:
        """The stages before which the pass cannot run, by what it reads."""
        pass_ = self._graph.passes[index]
        for use, producing in zip(pass_.reads, self._producers[index], strict=True):
            for source in producing & set(phase) & self._level.keys():
                maker = self._graph.passes[source]
                whole = use.whole or any(w.whole for w in maker.writes if w.buffer == use.buffer)
                waits = goes_by_sample(pass_) and (whole or not goes_by_sample(maker))
                yield self._level[source] + waits

    def _stage(self, phase: range, number: int) -> BarrierStage | None:
        """One stage with all passes that it runs again; None where one cannot."""
        owned = [i for i in phase if self._level.get(i) == number]
        firsts = [i for i in owned if goes_by_sample(self._graph.passes[i])]
        recomputed = self._needed(firsts)
        if recomputed is None:
            return None
        passes = [self._graph.passes[i] for i in (*recomputed, *firsts)]
        if any(cannot_join(*pair) for pair in combinations(passes, 2)):
            return None
        slots = (Slot(i, recompute=i in recomputed) for i in sorted((*recomputed, *firsts)))
        return BarrierStage(tuple(slots), tuple(i for i in owned if i not in firsts))

    def _needed(self, firsts: Sequence[int]) -> frozenset[int] | None:
        """The passes that recompute the maps between barriers that these read."""
        recomputed, due = set[int](), [*firsts]
        while due:
            index = due.pop()
            reads = self._graph.passes[index].reads
            for use, producing in zip(reads, self._producers[index], strict=True):
                if use.buffer not in self._between:
                    continue
                new = producing - recomputed - set(firsts)
                if not all(self._may_recompute(source) for source in new):
                    return None
                recomputed |= new
                due += new
        return frozenset(recomputed)

    def _may_recompute(self, index: int) -> bool:
        pass_ = self._graph.passes[index]
        plain = not (pass_.effects or pass_.updates or pass_.reduction)
        whole = any(use.whole for use in pass_.writes)
        return plain and goes_by_sample(pass_) and not whole and pass_.written_buffers <= self._own

    def _packs(self, recomputed: Iterable[int]) -> list[int]:
        """The passes that pack the weights of these."""
        buffers, passes = self._graph.buffers, self._graph.passes
        sources = {
            source
            for index in recomputed
            for use, producing in zip(passes[index].reads, self._producers[index], strict=True)
            for source in producing
            if buffers[use.buffer].kind is Kind.WEIGHT
        }
        return sorted(sources)

    def _finds_alike(self, index: int, phase: range) -> bool:
        """Whether a forward pass would read the same in this phase, but for recomputed maps."""
        pass_, packs = self._graph.passes[index], self._packs([index])
        names = pass_.read_buffers - self._between | {*pass_.params}
        names |= {name for pack in packs for name in self._graph.passes[pack].params}
        return not any(self._uses.changes(name, index, phase.start) for name in names)

    def _keeps_order(self, phase: Phase) -> bool:
        """Whether all passes read the same of what lasts in this order as in program order."""
        order = [slot.pass_index for slot in phase.ahead]
        for each in phase.stages:
            order += [*(slot.pass_index for slot in each.slots), *each.behind]
        order += phase.after
        changes: dict[str, set[int]] = {}
        for index in phase.passes:
            for name in self._changed(index):
                changes.setdefault(name, set()).add(index)
        done: dict[str, set[int]] = {name: set() for name in changes}
        for index in order:
            pass_ = self._graph.passes[index]
            for name in (
                pass_.read_buffers | set(pass_.params) | self._changed(index)
            ) & changes.keys():
                if done[name] - {index} != {i for i in changes[name] if i < index}:
                    return False
            for name in self._changed(index):
                done.setdefault(name, set()).add(index)
        return True

    def _changed(self, index: int) -> frozenset[str]:
        """The buffers and parameters that the pass changes for good."""
        pass_ = self._graph.passes[index]
        return (pass_.written_buffers - self._between) | set(pass_.updates)


def _whole_uses(pass_: Pass) -> frozenset[str]:
    if not goes_by_sample(pass_) or _changes_parameters(pass_):
        return pass_.used_buffers
    return frozenset(use.buffer for use in (*pass_.reads, *pass_.writes) if use.whole)


def _changes_parameters(pass_: Pass) -> bool:
    return bool(pass_.updates) and not pass_.effects
