"""Steps planned and simulated side by side, each in a process of its own."""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from ..planner.costs import Costs
from ..planner.planning import make_schedule
from ..planner.simulate import simulate
from ..planner.tuned import DEFAULT_POLICY, Choice
from ..units import Limit
from .request import REFUSALS, Request, budget_nbytes, make_graph

PROCESSES = min(8, os.cpu_count() or 1)  # of about 1 GB each


@dataclass(frozen=True, slots=True)
class Job:
    """A step of a request to plan, by the costs of its passes."""

    request: Request
    choice: Choice
    budget: Limit
    costs: Costs

    def seconds(self) -> float:
        """What the step takes, simulated. Raises one of REFUSALS where it has no room."""
        graph = make_graph(self.request, DEFAULT_POLICY, lambda *_: None, self.budget)
        schedule = make_schedule(
            graph,
            self.costs,
            policy=self.choice.policy,
            budget=budget_nbytes(self.budget, graph, self.costs, self.choice.policy),
            host_budget=self.request.host_budget,
            lead=self.choice.lead,
        )
        return simulate(schedule, self.costs).step_s


class Planners:
    """Processes that plan, begun where first there is more than one job for them."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def seconds(self, jobs: Sequence[Job]) -> Iterator[tuple[int, float | None]]:
        """The number of each job as it is done and the seconds of its step, None without room."""
        if PROCESSES == 1 or len(jobs) == 1:
            yield from ((number, _seconds(job)) for number, job in enumerate(jobs))
            return
        if self._pool is None:
            # A copy of this process would have its threads' locks and its GPU.
            spawn = get_context("spawn")
            self._pool = ProcessPoolExecutor(PROCESSES, mp_context=spawn, initializer=_die_at_once)
        numbers = {self._pool.submit(_seconds, job): number for number, job in enumerate(jobs)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()

    def close(self) -> None:
        """Give the processes back; what they have not begun they leave."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _seconds(job: Job) -> float | None:
    try:
        return job.seconds()
    except REFUSALS:
        return None


def _die_at_once() -> None:
    """Let an interruption, which reaches all processes of a terminal, end this one silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
