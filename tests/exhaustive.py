"""Small random networks to plan, and the best swap plan of one by exhaustive search."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import inf, prod

import torch
from torch import nn

from tests.test_schedules import CLASSES, random_costs
from tvdnn.engine import training_graph
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.costs import Costs
from tvdnn.planner.gaps import Gap
from tvdnn.planner.lower import CrowdedError, lower
from tvdnn.planner.planning import floor_of
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.policies.tvdnn import Site, sites
from tvdnn.planner.trials import Task

MOST_PLANS = 20_000
CAPS = (1.0, 0.9, 0.8)
OPENINGS: tuple[Callable[[Gap], int], ...] = (
    lambda gap: gap.opens,
    lambda gap: gap.leave + 1,
    lambda gap: gap.returns,
)


def small_case(seed: int) -> tuple[Graph, Costs, int] | None:
    """A network of few sections, costs and a budget between the floor and what keep takes.

    None where there is no such budget, or there are too many plans to try each.
    """
    rng = random.Random(seed)
    x = torch.empty(rng.randint(2, 4), rng.randint(3, 8), 12, 12)
    net = _chain(rng, x.shape[1])
    graph = training_graph(
        net, x, optimizer=SGD(momentum=0.9), sections=rng.randint(1, 3), fuse=True
    )
    costs = random_costs(rng)
    floor, _ = floor_of(graph, costs, "tvdnn-ilp")
    most = lower(graph, keep(graph), costs).peak_nbytes
    budget = floor + round(rng.random() * (most - floor))
    if budget >= most or sum(_count(site) for site in sites(graph, costs)) > MOST_PLANS:
        return None
    return graph, costs, budget


def _chain(rng: random.Random, channels: int) -> nn.Sequential:
    """Two to four convolutions, some of them normalized or pooled, and a classifier."""
    layers: list[nn.Module] = []
    side = 12
    for _ in range(rng.randint(2, 4)):
        width = rng.randint(3, 12)
        layers.append(nn.Conv2d(channels, width, 3, padding=1))
        layers += [nn.BatchNorm2d(width)] * (rng.random() < 0.2)
        layers.append(nn.ReLU())
        channels = width
        if side > 3 and rng.random() < 0.3:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side * side, CLASSES))


def exhaustive_s(graph: Graph, costs: Costs, budget: int) -> float:
    """The least seconds of any number of sections out of each map, and of steps of issue."""
    task = Task(graph, costs, "exhaustive", budget, None)
    found = (
        seconds
        for site in sites(graph, costs)
        for moved in _plans(site)
        for share in CAPS
        for seconds in _seconds(task, site, moved, round(share * task.room))
    )
    return min(found, default=inf)


def _maps(site: Site) -> list[list[Gap]]:
    """The trips of each map that is not negligible."""
    maps: dict[str, list[Gap]] = {}
    for gap in site.trips:
        maps.setdefault(gap.buffer, []).append(gap)
    sizes = {name: sum(gap.nbytes for gap in gaps) for name, gaps in maps.items()}
    return [gaps for name, gaps in maps.items() if sizes[name] > max(sizes.values()) / 50]


def _count(site: Site) -> int:
    return prod(1 + len(gaps) for gaps in _maps(site)) * len(OPENINGS) * len(CAPS)


def _plans(site: Site) -> Iterator[tuple[Gap, ...]]:
    """The last sections of each map, returning from backward on or from when they left on."""
    options = [[gaps[len(gaps) - n :] for n in range(1 + len(gaps))] for gaps in _maps(site)]
    for choice in product(*options):
        for opening in OPENINGS:
            yield tuple(replace(gap, opens=opening(gap)) for gaps in choice for gap in gaps)


def _seconds(task: Task, site: Site, moved: tuple[Gap, ...], cap: int) -> Iterator[float]:
    trial = task.trial(site, moved, cap)
    if trial is not None:
        try:
            found = task.found(trial)
        except CrowdedError:
            return
        if found is not None:
            yield found.seconds
