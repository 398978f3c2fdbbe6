"""Trials of a tuner: what is tried, on which machine, and a step to plan for it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..graph import ChunkSizes, Graph
from ..planner.ir.costs import Costs
from ..planner.ir.settings import RULES, Choice, Configuration, Table
from ..planner.timing.simulate import simulate
from ..runtime.autotune import Tunable
from ..units import Limit
from .request import REFUSALS, Request, make_problem


class Machine(Protocol):
    """Where steps are simulated, and measured if it `measures`; `copies` are its ways to copy."""

    @property
    def hardware(self) -> str: ...
    @property
    def measures(self) -> bool: ...
    @property
    def copies(self) -> Sequence[str]: ...
    def costs(self, graph: Graph, copies: str, configurations: Table = RULES) -> Costs:
        """Costs of the graph's passes, their kernels as configured, and of copies made so."""
        ...

    def measured_s(self, request: Request, choice: Choice, budget: Limit) -> float | None:
        """Seconds of a step as it runs, None where it has no room."""
        ...

    def configurable(self, graph: Graph) -> Sequence[Tunable]:
        """The launches of most of the graph's compute time that may be configured."""
        ...

    def share(self, each: Tunable, configuration: Configuration) -> float | None:
        """The share of its time that a launch takes as configured, None where that is refused.

        Of launches of the graph that was asked about last.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing to try; its name is its key in the record."""

    chunks: ChunkSizes
    choice: Choice
    budget: Limit
    measured: bool = False
    configured: bool = False

    @property
    def name(self) -> str:
        sizes = {"default": self.chunks.default} | {str(k): v for k, v in self.chunks.classes}
        choice = [self.choice.policy, self.choice.lead, self.choice.copies]
        kind = "measured" if self.measured else "simulated"
        configured = ["configured"] if self.configured else []
        return json.dumps([kind, str(self.budget), sizes, *choice, *configured])


@dataclass(frozen=True, slots=True)
class Job:
    """A step of a request to plan, by the costs of its passes."""

    request: Request
    choice: Choice
    budget: Limit
    costs: Costs

    def seconds(self) -> float:
        """What the step takes, simulated. Raises one of REFUSALS where it has no room."""
        problem = make_problem(self.request, self.costs, self.budget)
        schedule = problem.schedule(self.choice.policy, lead=self.choice.lead)
        return simulate(schedule, self.costs).step_s

    def seconds_if_any(self) -> float | None:
        """The same, None where it has no room."""
        try:
            return self.seconds()
        except REFUSALS:
            return None
