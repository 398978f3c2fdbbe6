"""The costs by which an engine plans a step, and the bytes of its budget."""

from collections.abc import Callable

import torch

from ..planner.ir.costs import Costs
from ..planner.ir.plan import FILE
from ..planner.make import Problem
from ..runtime.profiler import profile
from .build import default_costs
from .engine_request import EngineRequest, Resolved
from .first_step import FirstStep
from .step_memory import StepMemory


class StepCosts:
    """Finds costs as requested, or measured on the GPU, or those of a data sheet.

    `suspend` makes all runners leave the arena, which a measurement inside a budget takes.
    """

    def __init__(
        self,
        requested: EngineRequest,
        device: torch.device,
        kernels: str,
        memory: StepMemory,
        first_step: FirstStep,
        suspend: Callable[[], None],
    ) -> None:
        self._requested, self._device, self._kernels = requested, device, kernels
        self._memory, self._first_step, self._suspend = memory, first_step, suspend

    def find(self, resolved: Resolved) -> tuple[Costs, int | None]:
        """Costs to plan with, and the bytes of the budget."""
        costs = self._requested.costs or default_costs(resolved.graph)
        budget = self._budget_nbytes(resolved, costs)
        if self._requested.costs is not None or self._device.type != "cuda":
            return costs, budget
        measured = self._profile(resolved, budget)
        floor = self._budget_nbytes(resolved, measured)
        return measured, budget if budget is None or floor is None else max(budget, floor)

    def _budget_nbytes(self, resolved: Resolved, costs: Costs) -> int | None:
        problem = Problem(resolved.graph, costs, self._requested.budget)
        return problem.budget_nbytes(resolved.choice.policy)

    def _profile(self, resolved: Resolved, budget: int | None) -> Costs:
        graph, limit = resolved.graph, None
        if budget is not None:  # the scratch bytes take the arena's place
            limit = budget - graph.fixed_nbytes
            self._suspend()
            self._memory.arena.close()
        with torch.cuda.device(self._device):
            return profile(
                graph,
                device=self._device,
                kernels=self._kernels,
                limit=limit,
                copies=resolved.choice.copies,
                configurations=resolved.configurations,
                file=self._memory.file,
                file_limit=self._requested.tiers.nbytes.get(FILE),
                progress=self._first_step,
                estimates=budget is None,  # which weigh little where all maps are kept
            )
