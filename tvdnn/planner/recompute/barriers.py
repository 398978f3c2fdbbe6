"""Barrier stages: layers that normalize over the batch, run by block once for each of them.

A batch normalization is a barrier: no block of samples passes it before all have come so far. All
blocks run up to the first barrier, one after the other. Then all start again, pass it and run up to
the next. The maps between are recomputed in every stage and never exist for the whole batch. Where
a map hardly fits the device, that takes less time than to copy it. Backward has a stage for each
normalization's sums, and recomputes forward's maps and its own gradients.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...graph import Direction, Kind, Pass
from ..ir.costs import Costs
from .joined_passes import JoinedPasses, goes_by_sample
from .regions import Recompute, Users, extent_of, spans_of, users_of
from .supplies import Supplies

BETWEEN = (Kind.MAP, Kind.GRAD)
AHEAD = -1  # the stage of passes that need none


@dataclass(frozen=True, slots=True)
class BarrierStage:
    """Passes between two barriers."""

    makers: tuple[int, ...]  # recompute the maps between barriers that the passes read
    passes: tuple[int, ...]  # go through each block together, with the makers
    behind: tuple[int, ...]  # run behind these, once for all samples


@dataclass(frozen=True, slots=True)
class Phase:
    """The passes of one direction."""

    passes: range  # all of them, in program order
    ahead: tuple[int, ...]
    stages: tuple[BarrierStage, ...]
    after: tuple[int, ...]

    @property
    def recomputed(self) -> list[int]:
        """The passes that run again, as often as they do."""
        return [index for each in self.stages for index in each.makers]


@dataclass(frozen=True, slots=True)
class StagedGroup:
    """Neighbouring ops in stages; the maps that these recompute never exist for the whole batch."""

    forward: Phase
    backward: Phase
    recompute: Recompute
    made: frozenset[tuple[str, int]]  # maps between barriers, and the readers they are made for

    @property
    def passes(self) -> frozenset[int]:
        return frozenset((*self.forward.passes, *self.backward.passes))


def barrier_stages(
    supplies: Supplies, costs: Costs, groups: Iterable[Sequence[str]], least_nbytes: float
) -> Iterator[StagedGroup]:
    """The groups of ops that can go in stages, share no pass and save enough bytes of maps."""
    graph = supplies.graph
    if graph.row_tiles > 1:
        return
    spans, users, passes_of_stages = spans_of(graph), users_of(graph), set[int]()
    for group in groups:
        phases = [extent_of(spans, group, way) for way in (Direction.FORWARD, Direction.BACKWARD)]
        if all(phases) and all(passes_of_stages.isdisjoint(phase) for phase in phases):
            found = _OpGroup(supplies, users, *phases).stages(costs)
            if found is not None and found.recompute.nbytes > least_nbytes:
                passes_of_stages |= found.passes
                yield found


class _OpGroup:
    """The passes of a group of ops in both directions, and the buffers that they alone use."""

    def __init__(self, supplies: Supplies, users: Users, forward: range, backward: range) -> None:
        self._graph = graph = supplies.graph
        self._supplies = supplies
        self._phases = forward, backward
        members = frozenset((*forward, *backward))
        passes = [graph.passes[index] for index in members]
        made = frozenset(name for pass_ in passes for name in pass_.written_buffers)
        partly = (w.buffer for pass_ in passes for w in pass_.writes if w.channels is not None)
        given = frozenset((*graph.inputs, *partly))
        self._own = frozenset(name for name in made - given if users[name] <= members)
        at_once = frozenset(name for pass_ in passes for name in _whole_uses(pass_))
        self._between = frozenset(
            name for name in self._own - at_once if graph.buffers[name].kind in BETWEEN
        )
        self._level: dict[int, int] = {}
        self._made: set[tuple[str, int]] = set()

    def stages(self, costs: Costs) -> StagedGroup | None:
        """The group in stages; None where there would be one, or a pass cannot run again."""
        bare = [self._staged(phase) for phase in self._phases]
        if not all(each and self._keeps_order(each) for each in bare):
            return None
        order = [*range(len(self._graph.passes))]
        for phase in filter(None, bare):
            order[phase.passes.start : phase.passes.stop] = _order_of(phase)
        self._supplies = self._supplies.in_order(order)
        forward, backward = (self._with_makers(phase) for phase in filter(None, bare))
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
        return StagedGroup(forward, backward, recompute, frozenset(self._made))

    def _staged(self, phase: range) -> Phase | None:
        """One direction in stages without their makers; None where a pass has no stage."""
        if not self._levelled(phase):
            return None
        stages: list[BarrierStage] = []
        for number in range(1 + max(self._level[i] for i in phase if i in self._level)):
            owned = [i for i in phase if self._level.get(i) == number]
            firsts = tuple(i for i in owned if goes_by_sample(self._graph.passes[i]))
            stages.append(BarrierStage((), firsts, tuple(i for i in owned if i not in firsts)))
        ahead = tuple(index for index in phase if self._level.get(index) == AHEAD)
        after = tuple(index for index in phase if index not in self._level)
        return Phase(phase, ahead, tuple(stages), after)

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
        for use, producing in zip(pass_.reads, self._supplies.producers[index], strict=True):
            for source in producing & set(phase) & self._level.keys():
                maker = self._graph.passes[source]
                whole = use.whole or any(w.whole for w in maker.writes if w.buffer == use.buffer)
                waits = goes_by_sample(pass_) and (whole or not goes_by_sample(maker))
                yield self._level[source] + waits

    def _with_makers(self, phase: Phase) -> Phase | None:
        """The direction with all passes that its stages run again; None where one cannot."""
        stages = list[BarrierStage]()
        for stage in phase.stages:
            makers, joined = self._makers(stage.passes), JoinedPasses()
            for index in sorted((*(makers or ()), *stage.passes)):
                if makers is None or not joined.admits(self._graph.passes[index]):
                    return None
                joined.add(self._graph.passes[index])
            stages.append(replace(stage, makers=tuple(sorted(makers or ()))))
        return replace(phase, stages=tuple(stages))

    def _makers(self, firsts: Sequence[int]) -> set[int] | None:
        """The passes that recompute the maps between barriers that these read."""
        makers, due = set[int](), [(index, index) for index in firsts]
        while due:
            index, reader = due.pop()
            reads = self._graph.passes[index].reads
            for use, producing in zip(reads, self._supplies.producers[index], strict=True):
                if use.buffer not in self._between or producing <= makers | set(firsts):
                    continue
                supply = self._supplies.making(producing, reader)
                if supply is None or not all(map(self._may_join, supply.passes)):
                    return None
                if index == reader:
                    self._made.add((use.buffer, reader))
                due += [(maker, reader) for maker in supply.passes if maker not in makers]
                makers.update(supply.passes)
        return makers

    def _may_join(self, index: int) -> bool:
        """Whether the pass goes by sample, and writes buffers that the group alone uses."""
        pass_ = self._graph.passes[index]
        whole = any(use.whole for use in pass_.writes)
        return goes_by_sample(pass_) and not whole and pass_.written_buffers <= self._own

    def _keeps_order(self, phase: Phase) -> bool:
        """Whether all passes read the same of what lasts in this order as in program order."""
        changes: dict[object, set[int]] = {}
        for index in phase.passes:
            for name in self._changed(index):
                changes.setdefault(name, set()).add(index)
        done: dict[object, set[int]] = {name: set() for name in changes}
        for index in _order_of(phase):
            pass_ = self._graph.passes[index]
            read = self._graph.touched(pass_.reads) | set(pass_.params)
            for name in (read | self._changed(index)) & changes.keys():
                if done[name] - {index} != {i for i in changes[name] if i < index}:
                    return False
            for name in self._changed(index):
                done.setdefault(name, set()).add(index)
        return True

    def _changed(self, index: int) -> frozenset[object]:
        """The buffers and parameters that the pass changes for good."""
        pass_ = self._graph.passes[index]
        return (self._graph.touched(pass_.writes) - self._between) | set(pass_.updates)


def _order_of(phase: Phase) -> list[int]:
    order = [*phase.ahead]
    for each in phase.stages:
        order += [*each.passes, *each.behind]
    return [*order, *phase.after]


def _whole_uses(pass_: Pass) -> frozenset[str]:
    if not goes_by_sample(pass_) or _changes_parameters(pass_):
        return pass_.used_buffers
    return frozenset(use.buffer for use in (*pass_.reads, *pass_.writes) if use.whole)


def _changes_parameters(pass_: Pass) -> bool:
    return bool(pass_.updates) and not pass_.effects
