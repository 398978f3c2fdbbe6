"""Coverage proof: every pass runs once over its whole domain, in a valid order."""

from collections.abc import Iterator

from ...errors import ScheduleError
from ...graph import Direction, Graph
from ..ir.schedule import Action, Schedule, Step
from .check_bytes import schedule_error
from .expected_sources import CALLER, ReadSources


def check_coverage(schedule: Schedule, expected: ReadSources) -> None:
    """Raise ScheduleError unless the launches cover the domain of each pass once.

    Reductions run in index order and are complete before their results are read. A recompute
    repeats rows of a pass that is no reduction and changes no parameter. A parameter is read as
    program order leaves it. Each phase holds its own passes.
    """
    graph = schedule.graph
    progress = _Progress(graph, expected)
    for index, step in enumerate(schedule.steps):
        if step.action is not Action.LAUNCH:
            continue
        late, second = step.pass_index >= graph.phase_split, index >= schedule.phase_split
        if late != second and not (second and step.recompute):
            raise schedule_error(schedule, index, "is in the wrong phase of the step")
        problem = progress.problem(step)
        if problem is not None:
            raise schedule_error(schedule, index, problem)
        progress.advance(step)
    for pass_, count in zip(graph.passes, progress.counts, strict=True):
        if count < pass_.domain:
            raise ScheduleError(f"{pass_.name} runs over {count} of {pass_.domain} rows")


class _Progress:
    """The rows that every pass has done, and the pass that changed each parameter last."""

    __slots__ = ("_changed", "_params", "_passes", "_reductions_read", "_rows", "counts")

    def __init__(self, graph: Graph, expected: ReadSources) -> None:
        self._passes = graph.passes
        self._rows = [bytearray(pass_.domain) for pass_ in graph.passes]
        self._reductions_read = list(_reductions_read(graph, expected))
        self._params = list(_param_sources(graph))
        self._changed: dict[str, int] = {}
        self.counts = [0] * len(graph.passes)

    def advance(self, step: Step) -> None:
        """Record that `step` has run."""
        if step.recompute:
            return
        self._rows[step.pass_index][step.start : step.stop] = b"\1" * (step.stop - step.start)
        self.counts[step.pass_index] += step.stop - step.start
        for name in self._passes[step.pass_index].updates:
            self._changed[name] = step.pass_index

    def problem(self, step: Step) -> str | None:
        """The reason why `step` may not run now; None if it may."""
        for index in self._reductions_read[step.pass_index]:
            if not self._complete(index):
                return f"runs before {self._passes[index].name} is complete"
        own = self._recompute_problem(step) if step.recompute else self._order_problem(step)
        return own or self._param_problem(step)

    def _complete(self, index: int) -> bool:
        return self.counts[index] == self._passes[index].domain

    def _order_problem(self, step: Step) -> str | None:
        count = self.counts[step.pass_index]
        if 1 in self._rows[step.pass_index][step.start : step.stop]:
            return "runs a second time and is not a recompute"
        if self._passes[step.pass_index].reduction and step.start != count:
            return f"is out of index order, as rows [0, {count}) are reduced so far"
        return None

    def _recompute_problem(self, step: Step) -> str | None:
        pass_ = self._passes[step.pass_index]
        if pass_.direction is Direction.UPDATE or pass_.reduction:
            kind = "a reduction" if pass_.reduction else pass_.direction.value
            return f"recomputes a pass that is {kind}"
        if 0 in self._rows[step.pass_index][step.start : step.stop]:
            return "recomputes rows that no launch before it computed"
        if pass_.updates and not pass_.effects:
            return f"recomputes a pass that changes {', '.join(pass_.updates)}"
        return None

    def _param_problem(self, step: Step) -> str | None:
        """The parameter that differs from program order, in words; None if there is none."""
        updates = self._passes[step.pass_index].updates
        for name, source in self._params[step.pass_index]:
            found = self._changed.get(name, CALLER)
            if name in updates and (step.recompute or found == step.pass_index):
                continue
            if found != source:
                return f"finds {name} as {self._maker(found)} leaves it, not {self._maker(source)}"
            if found != CALLER and not self._complete(found):
                return f"finds {name}, which {self._maker(found)} is still changing"
        return None

    def _maker(self, index: int) -> str:
        return "the caller" if index == CALLER else self._passes[index].name


def _reductions_read(graph: Graph, expected: ReadSources) -> Iterator[tuple[int, ...]]:
    for index, needs in enumerate(expected.needs):
        sources = {each.producer for ranges in needs for each in ranges} - {CALLER, index}
        yield tuple(sorted(s for s in sources if graph.passes[s].reduction))


def _param_sources(graph: Graph) -> Iterator[tuple[tuple[str, int], ...]]:
    """By pass, the parameters that it uses, each with the pass that changes it last before."""

    latest: dict[str, int] = {}
    for index, pass_ in enumerate(graph.passes):
        names = dict.fromkeys((*pass_.params, *pass_.updates))
        yield tuple((name, latest.get(name, CALLER)) for name in names if name)
        latest |= dict.fromkeys(pass_.updates, index)
