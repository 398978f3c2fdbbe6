"""Machines of the tuner: a hardware profile, or the present GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..graph import Graph
from ..planner.ir.costs import Costs, Hardware, Roofline
from ..planner.ir.settings import COPIES, ENGINE, RULES, Choice, Configuration, Table
from ..runtime.autotune import Autotuner, Tunable
from ..runtime.profiler import profile
from ..units import Limit
from .measure import Device, measured, planned_on
from .progress import StageReport
from .request import Request, make_graph, random_labelled

STEPS = 10  # timed steps, after a first that is not timed


@dataclass(frozen=True, slots=True)
class DataSheet:
    """A machine that is only simulated. Nothing runs, and copies by kernels have no rates."""

    profile: Hardware
    measures: bool = False
    copies: tuple[str, ...] = (ENGINE,)

    @property
    def hardware(self) -> str:
        return self.profile.name

    def costs(self, graph: Graph, copies: str, configurations: Table = RULES) -> Costs:
        return Roofline(self.profile, graph.dtype)

    def measured_s(self, request: Request, choice: Choice, budget: Limit) -> float | None:
        return None

    def configurable(self, graph: Graph) -> Sequence[Tunable]:
        return ()

    def share(self, each: Tunable, configuration: Configuration) -> float | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


class PresentGpu:
    """The present GPU. Its passes are profiled, and steps are timed in new trainers."""

    measures = True
    copies = COPIES

    def __init__(self, device: Device, report: StageReport) -> None:
        self.hardware = planned_on(device.device)
        self._device, self._report = device, report
        self._costs: dict[tuple[int, str, str], Costs] = {}
        self._configuring: Autotuner | None = None
        self._batch: tuple[Tensor, Tensor] | None = None

    def costs(self, graph: Graph, copies: str, configurations: Table = RULES) -> Costs:
        # The graphs of a command live as long as the command.
        key = (id(graph), copies, repr(configurations))
        if key not in self._costs:
            self._costs[key] = profile(
                graph,
                device=self._device.device,
                kernels=self._kernels,
                copies=copies,
                configurations=configurations,
                progress=self._report,
            )
        return self._costs[key]

    def measured_s(self, request: Request, choice: Choice, budget: Limit) -> float | None:
        self._configuring = None  # its bytes are the trainer's
        if self._batch is None:
            graph = make_graph(request, choice.policy, self._report)
            self._batch = random_labelled(request, graph, self._device.device)
        batches = [self._batch] * (STEPS + 1)
        policy, report = choice.policy, self._report
        found = measured(request, self._device, policy, budget, batches, report, choice=choice)
        return found.row.step_s

    def configurable(self, graph: Graph) -> Sequence[Tunable]:
        costs = self.costs(graph, ENGINE)
        self._configuring = Autotuner(graph, self._device.device, self._kernels)
        found = self._configuring.worth(costs)
        self._report("compiling kernels", 0.0)
        self._configuring.compile(found)
        return found

    def share(self, each: Tunable, configuration: Configuration) -> float | None:
        assert self._configuring is not None
        return self._configuring.share(each, configuration)

    @property
    def _kernels(self) -> str:
        return self._device.kernels or "triton"

    def close(self) -> None:
        """Give back the host memory that trainers shared."""
        self._device.slab.close()
