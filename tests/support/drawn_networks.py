"""Small networks drawn by seed, with machines on which each means of a plan pays somewhere."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.support.enumerated import Enumeration
from tests.support.lowered import lower
from tvdnn.engine import training_graph
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Costs, Hardware, Link, Roofline
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.policies.keep import keep

CLASSES = 4
KINDS = ("plain", "normalized", "residual", "residual", "residual")
GAPS = range(6, 10)
MOST_DECISIONS = 1500  # of what is made again and of codes: more take minutes
BANDWIDTH = 1e9  # of device memory, in bytes per second: launches over small maps take their bytes
LINKS = (0.02, 0.05, 0.1, 0.2, 0.5)  # of that bandwidth
SHARES = (0.25, 0.5)  # of the way from the least bytes to those of keep
FLOPS = (3e9, 1e10, 3e10, 1e11)  # per second: a convolution takes 0.4 to 12 times its bytes


@dataclass(frozen=True, slots=True)
class DrawnCase:
    """A network and a machine, by their seed."""

    seed: int
    kind: str
    graph: Graph
    costs: Costs
    link_share: float  # of the bandwidth of the device
    flops: float


class _Residual(nn.Module):
    """Convolutions with normalization, added to their input before the last ReLU."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number in range(depth):
            layers += [nn.ReLU()] * (number > 0)
            layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(channels)]
        self.branch = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.branch(x)).relu()


def drawn_case(seed: int) -> DrawnCase:
    """The network and machine of a seed. The network has six to nine gaps."""
    rng = random.Random(seed)
    flops, link_share = rng.choice(FLOPS), rng.choice(LINKS)
    rate = BANDWIDTH * link_share
    links = {HOST: Link(rate, rate, 0.9 * rate, 0.9 * rate, 1e-7)}
    machine = Hardware("drawn", 1 << 40, BANDWIDTH, {"bf16": flops}, 1.0, 1.0, 1e-7, links, ())
    costs = Roofline(machine, "bf16")
    kind = rng.choice(KINDS)
    while True:
        channels, side = rng.choice((8, 16, 32)), rng.choice((8, 12))
        net = _network(rng, kind, channels, side)
        x = torch.empty(rng.randint(2, 4), 3, side, side)
        graph = training_graph(
            net, x, optimizer=SGD(), sections=rng.choice((1, 1, 1, 2)), fuse=True, dtype="bf16"
        )
        enumeration = Enumeration(graph, costs)
        if enumeration.num_gaps in GAPS and enumeration.num_decisions <= MOST_DECISIONS:
            return DrawnCase(seed, kind, graph, costs, link_share, flops)


def budgets_of(case: DrawnCase, enumeration: Enumeration) -> list[int]:
    """The bytes of a tight arena and of a middle one, between what plans and keep need."""
    least, most = enumeration.least_nbytes(), lower(case.graph, keep(case.graph), case.costs)
    return [round(least + share * (most.arena_nbytes - least)) for share in SHARES]


def _network(rng: random.Random, kind: str, channels: int, side: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    layers += [nn.ReLU()] * (kind == "plain")
    for _ in range(rng.randint(2, 6)):
        if kind == "residual":
            layers.append(_Residual(channels, rng.randint(1, 2)))
        else:
            layers.append(nn.Conv2d(channels, channels, 3, padding=1))
            layers += [nn.BatchNorm2d(channels)] * (kind == "normalized")
            layers.append(nn.ReLU())
        if side > 4 and rng.random() < 0.15:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers, *tail)
