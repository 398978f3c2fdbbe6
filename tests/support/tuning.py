"""A clocked machine, guessed steps and small networks to tune."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from tvdnn.experiment.machines import DataSheet
from tvdnn.experiment.processes import Processes
from tvdnn.experiment.request import Request, make_request, network_of
from tvdnn.experiment.trials import Job
from tvdnn.experiment.tuner import Tuner
from tvdnn.graph import ChunkSizes, Graph
from tvdnn.ops.chunk_size import LEAST_CHUNK_SIZE
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.settings import RULES, Choice, Configuration, Table
from tvdnn.runtime.autotune import Tunable
from tvdnn.runtime.tuning_store import TuningStore
from tvdnn.units import KIB, Limit

BATCH, SHAPE, CLASSES = 8, (3, 16, 16), 5
SIZES = (4 * KIB, 16 * KIB)
BUDGET = 1_000_000  # of LeNet-5(16): above the floor in sections of 16 KiB, below that in one
UNTUNED = ChunkSizes(LEAST_CHUNK_SIZE)
NO_SHARES: Mapping[str, Sequence[float | None]] = {}
SHARES = {"first": (0.99, 0.9, None), "second": (0.985, None), "third": (None,), "last": (0.5,)}
FASTER = {"first": {"num_stages": 4}, "last": {"num_stages": 3}}


class Clocked:
    """A machine whose steps are fastest in sections of 16 KiB, and with a lead.

    Its launches take these shares of their times by 3 stages, by 4 and so on.
    """

    hardware, measures, copies = "H200", True, ("engine", "kernel")

    def __init__(
        self,
        stops_after: int | None = None,
        shares: Mapping[str, Sequence[float | None]] = NO_SHARES,
    ) -> None:
        self.measured: list[tuple[ChunkSizes, Choice]] = []
        self.stops_after = stops_after
        self.shares = shares
        self.shared: list[tuple[str, int]] = []
        self.configured: list[Table] = []
        self.graphs: list[Graph] = []  # whose costs were asked for

    def costs(self, graph: Graph, copies: str, configurations: Table = RULES) -> Costs:
        self.configured.append(configurations)
        self.graphs.append(graph)
        return DataSheet(load("H200")).costs(graph, copies)

    def configurable(self, graph: Graph) -> Sequence[Tunable]:
        return [
            Tunable(key, 0, tuple({"num_stages": 3 + i} for i in range(len(shares))))
            for key, shares in self.shares.items()
        ]

    def share(self, each: Tunable, configuration: Configuration) -> float | None:
        stages = configuration["num_stages"]
        self.shared.append((each.key, stages))
        return self.shares[each.key][stages - 3]

    def measured_s(self, request: Request, choice: Choice, budget: Limit) -> float | None:
        if len(self.measured) == self.stops_after:
            raise KeyboardInterrupt
        self.measured.append((request.chunks, choice))
        return 1.0 + (request.chunks.default != 16 * KIB) + (choice.lead is None) / 2

    def close(self) -> None: ...


def lenet() -> Request:
    return make_request("lenet5", 16, None, "fp32", None, None)


def tuner_of(machine: Clocked) -> tuple[Tuner, TuningStore]:
    store = TuningStore("H200", network_of(lenet()), "fp32")
    return Tuner(lenet(), machine, store, lambda *_: None, Processes(1)), store


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(width, 8, 3, padding=1) for width in (3, 8, 8)]
    rectified = [each for layer in layers for each in (layer, nn.ReLU())]
    return nn.Sequential(*rectified, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, CLASSES))


def guessed_s(job: Job) -> float:
    """Guessed seconds of a step.

    They are fewest in sections of 4 KiB, with one class of 2 KiB, by the heuristic, with a lead of
    2 and by copy engines.
    """
    sizes = {4 * KIB: 1.0, 16 * KIB: 1.1, 32 * KIB: 1.2, UNTUNED.default: 1.3}
    policies = {"auto": 0.2, "tvdnn-heuristic": 0.1, "tvdnn-ilp": 0.3}
    chunks, choice = job.request.chunks, job.choice
    own = sum(size == 2 * KIB for _, size in chunks.classes[:1]) / 10
    led = {None: 0.2, 2: 0.1}.get(choice.lead, 0.15)
    way = {"engine": 0.05, "kernel": 0.06}[choice.copies]
    return sizes[chunks.default] - own + policies[choice.policy] + led + way
