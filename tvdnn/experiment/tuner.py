"""Tuning: chunk sizes and kernels of a network, and inside each budget how to plan and copy.

Plans are simulated first, and the best few are measured where there is something to measure on, as
are the kernels' configurations.
What was tried is kept in a record, so that nothing is tried twice.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import exp, inf, log
from typing import Final, NoReturn

import numpy as np

from ..errors import InputError
from ..graph import ChunkSizes, Graph, Kind, size_class
from ..planner.ir.settings import DEFAULT_POLICY, ENGINE, RULES, Choice, Configuration, Table, Tuned
from ..planner.make import Problem
from ..planner.policies import POLICIES
from ..report.tuning import CurvePoint, TuningResult
from ..runtime.autotune import Tunable
from ..runtime.tuning_store import TuningStore
from ..units import MIB, Limit, parse_limit
from .processes import Processes
from .progress import StageReport
from .request import REFUSALS, Request, chunk_sizes, make_graph
from .trials import Job, Machine, Trial

CHUNK_SIZES: Final = tuple(MIB << power for power in range(7))
LEADS: Final = (1, 2, 4, 8, 16, 32)
SEARCHED: Final = sorted(name for name, policy in POLICIES.items() if policy.searches)
FINALISTS: Final = 3  # that are measured
LED: Final = 2  # policies with which leads are tried
LITTLE: Final = 0.002  # of a step, for which a class of maps gets no size of its own
NOISE: Final = 0.02  # of a launch's time: by less clocks alone tell two measurements apart
SMALL_CLASS: Final = 0.03  # of the bytes of all maps, below which a class has the size of most
BUDGETS: Final = 3  # where none is asked for
ABOVE_FLOOR, BELOW_KEEP = 1.2, 0.9
LAUNCH: Final = "launch"  # what names of trials of configurations start with


class Tuner:
    """Tries sizes and choices for `request` on a machine, and settles them in the record."""

    def __init__(
        self,
        request: Request,
        machine: Machine,
        store: TuningStore,
        report: StageReport,
        processes: Processes,
    ) -> None:
        self._request, self._machine = request, machine
        self._store, self._report = store, report
        self._processes = processes
        self._graphs: dict[tuple[ChunkSizes, str], Graph] = {}  # by chunk sizes and policies
        self._untuned = chunk_sizes(replace(request, chunks=None))

    def tune(self, budgets: Sequence[Limit], sizes: Sequence[int] = CHUNK_SIZES) -> Tuned:
        """Settle chunk sizes, by the budgets or by some between, kernels, and a choice a budget.

        What the record has settled before stays. Raises BudgetError where nothing fits.
        """
        if self._store.tuned.chunks is None:
            chunks = self._best_chunks(budgets or self._some_budgets(), sizes)
            self._store.set_tuned(replace(self._store.tuned, chunks=chunks))
        if self._store.tuned.configurations is None and self._machine.measures:
            configurations = self._best_configurations()
            self._store.set_tuned(replace(self._store.tuned, configurations=configurations))
        for budget in budgets:
            if str(budget) not in self._store.tuned.choices:
                self._store_choice(budget)
        return self._store.tuned

    def curve(self, budgets: Sequence[Limit]) -> Iterator[CurvePoint]:
        """What was tried of single chunk sizes, the least first."""
        tried = [json.loads(name) for name in self._store.trials]
        sizes = sorted({each[2]["default"] for each in tried if each[0] != LAUNCH})
        for size in sizes:
            for budget in budgets or self._some_budgets():
                trial = Trial(ChunkSizes(size), Choice(), budget)
                (simulated,), (measured,) = (self._known(trial, measured=m) for m in (False, True))
                if (simulated, measured) != (None, None):
                    yield CurvePoint(size, budget, simulated, measured)

    @property
    def tuned(self) -> Tuned:
        return self._store.tuned

    def stored(self) -> Iterator[TuningResult]:
        """What is used inside each budget from now on, its seconds and those without tuning."""
        tuned = self._store.tuned
        for budget, choice in tuned.choices.items():
            limit = parse_limit(budget)
            mine = self._trial(tuned.chunks or self._untuned, choice, limit)
            plain = Trial(self._untuned, Choice(), limit)
            known = [self._known(mine, plain, measured=each) for each in (False, True)]
            yield TuningResult(limit, choice, *chain.from_iterable(known))

    def _known(self, *trials: Trial, measured: bool) -> Iterator[float | None]:
        """Seconds of trials, where they were tried and fit."""
        for trial in trials:
            yield self._store.trials.get(replace(trial, measured=measured).name)

    def _some_budgets(self) -> tuple[int, ...]:
        """Evenly from little above the floor to little below what keeping everything takes."""
        graph = self._graph(self._untuned)
        costs = self._machine.costs(graph, ENGINE)
        problem = Problem(graph, costs)
        floor = problem.floor(DEFAULT_POLICY)[0]
        kept = problem.schedule("keep").peak_nbytes
        ends = ABOVE_FLOOR * floor, max(ABOVE_FLOOR * floor, BELOW_KEEP * kept)
        return tuple(dict.fromkeys(int(nbytes) for nbytes in np.linspace(*ends, BUDGETS)))

    # Chunk sizes

    def _best_chunks(self, budgets: Sequence[Limit], sizes: Sequence[int]) -> ChunkSizes:
        alike = list(dict.fromkeys([*map(ChunkSizes, sizes), self._untuned]))
        self._simulate("chunk sizes", [Trial(c, Choice(), b) for c in alike for b in budgets])
        scores = {chunks: self._score(chunks, budgets) for chunks in alike}
        best = min(scores, key=lambda chunks: scores[chunks])
        if scores[best] == inf:
            self._refuse(self._untuned, budgets)
        refined = self._refined(best, scores[best], budgets)
        ranked = sorted(scores, key=lambda chunks: scores[chunks])
        finalists = list(dict.fromkeys([refined, *ranked]))[: FINALISTS - 1]
        return self._best_measured(list(dict.fromkeys([*finalists, self._untuned])), budgets)

    def _refined(self, best: ChunkSizes, best_score: float, budgets: Sequence[Limit]) -> ChunkSizes:
        """`best`, with another size for each class of maps whose steps take less by it."""
        for each in self._classes(best):
            sizes = best.default // 2, best.default * 2
            other = [ChunkSizes(best.default, (*best.classes, (each, size))) for size in sizes]
            self._simulate("map classes", [Trial(c, Choice(), b) for c in other for b in budgets])
            scores = {chunks: self._score(chunks, budgets) for chunks in other}
            least = min(other, key=lambda chunks: scores[chunks])
            if scores[least] < (1 - LITTLE) * best_score:
                best, best_score = least, scores[least]
        return best

    def _classes(self, chunks: ChunkSizes) -> list[int]:
        """The classes of maps, those of most bytes first; small ones are left out."""
        nbytes: dict[int, int] = {}
        for buffer in self._graph(chunks).buffers.values():
            if buffer.kind in (Kind.MAP, Kind.GRAD, Kind.INPUT):
                known = nbytes.setdefault(size_class(buffer.row_nbytes), 0)
                nbytes[size_class(buffer.row_nbytes)] = known + buffer.nbytes
        least = SMALL_CLASS * sum(nbytes.values())
        large = [each for each in nbytes if nbytes[each] >= least]
        return sorted(large, key=lambda each: nbytes[each], reverse=True)

    def _best_measured(
        self, finalists: Sequence[ChunkSizes], budgets: Sequence[Limit]
    ) -> ChunkSizes:
        """The fastest as measured; where nothing measures the first, which simulation put there."""
        if not self._machine.measures:
            return finalists[0]
        scores: dict[ChunkSizes, float] = {}
        for number, chunks in enumerate(finalists):
            self._report("measuring chunk sizes", number / len(finalists))
            scores[chunks] = self._score(chunks, budgets, measured=True)
        return min(scores, key=lambda chunks: scores[chunks])

    def _score(
        self, chunks: ChunkSizes, budgets: Sequence[Limit], *, measured: bool = False
    ) -> float:
        """The geometric mean over the budgets of the seconds of a step."""
        each = [self._seconds(Trial(chunks, Choice(), b, measured)) for b in budgets]
        return inf if inf in each else exp(sum(map(log, each)) / len(each))

    # Configurations

    def _best_configurations(self) -> Table:
        assert self._store.tuned.chunks is not None
        every = self._machine.configurable(self._graph(self._store.tuned.chunks))
        found = {}
        for number, each in enumerate(every):
            self._report("measuring kernels", number / len(every))
            if (best := self._best_configuration(each)) is not None:
                found[each.key] = best
        return found

    def _best_configuration(self, each: Tunable) -> Configuration | None:
        """The candidate that takes the least, if that is clearly less than by the rule."""
        shares = [self._share(each, candidate) for candidate in each.candidates]
        best = min(range(len(shares)), key=lambda index: shares[index])
        return each.candidates[best] if shares[best] < 1 - NOISE else None

    def _share(self, each: Tunable, configuration: Configuration) -> float:
        """What the configuration takes, from the record or tried now; infinite where refused."""
        name = json.dumps([LAUNCH, each.key, configuration])
        if name not in self._store.trials:
            self._store.add_trial(name, self._machine.share(each, configuration))
        found = self._store.trials[name]
        return inf if found is None else found

    # Choices

    def _store_choice(self, budget: Limit) -> None:
        choices = {**self._store.tuned.choices, str(budget): self._best_choice(budget)}
        self._store.set_tuned(replace(self._store.tuned, choices=choices))

    def _best_choice(self, budget: Limit) -> Choice:
        chunks = self._store.tuned.chunks
        assert chunks is not None
        if budget is None:
            return Choice()  # everything is kept
        simulated = self._simulated(chunks, budget)
        ranked = sorted(simulated, key=lambda choice: simulated[choice])
        if simulated[ranked[0]] == inf:
            self._refuse(chunks, [budget])
        if not self._machine.measures:
            return ranked[0]
        finalists = list(dict.fromkeys([*ranked[: FINALISTS - 1], Choice()]))
        taken = {}
        for number, choice in enumerate(finalists):
            self._report("measuring choices", number / len(finalists))
            taken[choice] = self._seconds(self._trial(chunks, choice, budget, measured=True))
        return min(taken, key=lambda choice: taken[choice])

    def _simulated(self, chunks: ChunkSizes, budget: Limit) -> dict[Choice, float]:
        """Seconds of a step by each policy, then by leads of the best, then by other copies."""
        found = self._tried(chunks, budget, map(Choice, SEARCHED))
        best = sorted(found, key=lambda choice: found[choice])
        led = (replace(choice, lead=lead) for choice in best[:LED] for lead in LEADS)
        found |= self._tried(chunks, budget, led)
        best = sorted(found, key=lambda choice: found[choice])
        ways = (way for way in self._machine.copies if way != ENGINE)
        return found | self._tried(chunks, budget, (replace(best[0], copies=w) for w in ways))

    def _tried(
        self, chunks: ChunkSizes, budget: Limit, choices: Iterable[Choice]
    ) -> dict[Choice, float]:
        trials = {choice: self._trial(chunks, choice, budget) for choice in choices}
        self._simulate("choices", list(trials.values()))
        return {choice: self._seconds(trial) for choice, trial in trials.items()}

    # Trials

    def _trial(
        self, chunks: ChunkSizes, choice: Choice, budget: Limit, *, measured: bool = False
    ) -> Trial:
        """A trial with what configurations were settled."""
        return Trial(chunks, choice, budget, measured, bool(self._store.tuned.configurations))

    def _seconds(self, trial: Trial) -> float:
        """What the trial takes, from the record or measured now; infinite where it does not fit."""
        if trial.name not in self._store.trials:
            assert trial.measured, "simulated by `_simulate` before"
            self._store.add_trial(trial.name, self._measure(trial))
        found = self._store.trials[trial.name]
        return inf if found is None else found

    def _measure(self, trial: Trial) -> float | None:
        request = replace(self._request, chunks=trial.chunks)
        try:
            return self._machine.measured_s(request, trial.choice, trial.budget)
        except REFUSALS:
            return None

    def _simulate(self, what: str, trials: Sequence[Trial]) -> None:
        """Have the record know what the trials take as simulated."""
        new = [trial for trial in trials if trial.name not in self._store.trials]
        if not new:
            return
        jobs = [self._job(trial).seconds_if_any for trial in new]
        progress = partial(self._report, f"simulating {what}")
        for number, seconds in self._processes.each(jobs, progress):
            self._store.add_trial(new[number].name, seconds)

    def _job(self, trial: Trial) -> Job:
        graph = self._graph(trial.chunks, trial.choice.policy)
        stored = self._store.tuned.configurations if trial.configured else None
        costs = self._machine.costs(graph, trial.choice.copies, stored or RULES)
        request = replace(self._request, chunks=trial.chunks)
        return Job(request, trial.choice, trial.budget, costs)

    def _refuse(self, chunks: ChunkSizes, budgets: Sequence[Limit]) -> NoReturn:
        """Say why nothing fits one of the budgets."""
        for budget in budgets:
            self._job(Trial(chunks, Choice(), budget)).seconds()
        raise InputError("no chunk size has a plan inside all of these budgets; tune them apart")

    def _graph(self, chunks: ChunkSizes, policy: str = DEFAULT_POLICY) -> Graph:
        """The graph that the policy plans, whose passes have costs."""
        key = chunks, policy
        if key not in self._graphs:
            request = replace(self._request, chunks=chunks)
            self._graphs[key] = make_graph(request, policy, lambda *_: None)
        return self._graphs[key]
