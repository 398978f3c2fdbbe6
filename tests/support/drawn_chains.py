"""Chains of layers drawn by seed, costs for them, and whether a schedule has keep's bits."""

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tests.support.lowered import lower
from tests.support.networks import random_chain
from tests.support.running import Batch, Outcome, random_batches, train
from tvdnn.engine import training_graph
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Costs, Link, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import TIERS
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.policies.keep import keep

STEPS = 2
CLASSES = 4
LINKS = (1e5, 1e8, 1e12)  # bytes a second: copies dwarf compute, match it, or cost nothing


def random_costs(rng: random.Random) -> Costs:
    """Costs with slow or fast copies beside compute. Orders of steps differ."""
    rate = rng.choice(LINKS)
    link = Link(rate, rate, rate / 2, rate / 2, 1e-6)
    return Roofline(replace(load("H200"), links=dict.fromkeys(TIERS, link)), "fp32")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A network with batches for it and the graph of its training step."""

    net: nn.Module
    batches: list[Batch]
    graph: Graph
    seed: int

    @classmethod
    def of(cls, net: nn.Module, shape: tuple[int, ...], seed: int, **options: Any) -> "Drawn":
        """A network for images [N, C, H, W]. The options are those of its graph."""
        batches = random_batches(STEPS, shape, CLASSES, seed)
        optimizer = SGD(momentum=0.9)
        return cls(
            net, batches, training_graph(net, batches[0][0], optimizer=optimizer, **options), seed
        )

    @classmethod
    def chain(
        cls,
        rng: random.Random,
        seed: int,
        shape: tuple[int, int, int, int],
        *,
        forks: bool = False,
        **options: Any,
    ) -> "Drawn":
        """A chain of layers."""
        torch.manual_seed(seed)
        net = random_chain(rng, shape[1], shape[2], CLASSES, forks=forks)
        return cls.of(net, shape, seed, **options)

    def kept(self, costs: Costs) -> Schedule:
        """The schedule that keeps every map."""
        return lower(self.graph, keep(self.graph), costs)

    def assert_bits(self, schedule: Schedule, kept: Schedule) -> Outcome:
        """Run in a random order, the schedule trains to the bits of the one that keeps all."""
        outcome = train(self.net, schedule, self.batches, order_seed=self.seed)
        assert outcome.equals(train(self.net, kept, self.batches))
        return outcome
