"""Small random networks to plan, and the best swap plan of one by exhaustive search."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import inf, prod
from operator import itemgetter

import torch
from torch import nn

from tests.planner.test_schedules import CLASSES, random_costs
from tests.support.lowered import lower
from tvdnn.engine import training_graph
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.lowering.floor import MinimumSchedule
from tvdnn.planner.lowering.idle import IdleInterval
from tvdnn.planner.lowering.limits import FragmentationError
from tvdnn.planner.offload.skeleton import Skeleton, plans_offloading_all, skeletons
from tvdnn.planner.offload.swap_problem import SwapProblem
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.problem import GraphProblem, Limits

MOST_PLANS = 4000
CAPS = (1.0, 0.9, 0.8)
OPENINGS: tuple[Callable[[IdleInterval], int], ...] = (
    lambda gap: gap.earliest_prefetch,
    lambda gap: gap.offload_after + 1,
    lambda gap: gap.needed_by,
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
    lean = (*plans_offloading_all(graph, costs, "exhaustive"), keep(graph))
    floor = min(MinimumSchedule.of(graph, plan, costs).floor[0] for plan in lean)
    most = lower(graph, keep(graph), costs).peak_nbytes
    budget = floor + round(rng.random() * (most - floor))
    if budget >= most or sum(_count(skeleton) for skeleton in skeletons(graph, costs)) > MOST_PLANS:
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
    """The least seconds of any number of sections out of each map, and of steps of issue.

    Between forward and backward; where something else must leave besides, all that is idle does.
    What cannot take less than the best found so far is not made.
    """
    swap = SwapProblem(GraphProblem(graph, costs, Limits.of(graph, budget)), "exhaustive")
    plans = [
        (skeleton, moved) for skeleton in skeletons(graph, costs) for moved in _plans(skeleton)
    ]
    ranked = sorted(((_least_s(costs, *plan), *plan) for plan in plans), key=itemgetter(0))
    best_s = inf
    for least_s, skeleton, moved in ranked:
        if least_s >= best_s:
            break
        caps = (round(share * swap.room) for share in CAPS)
        best_s = min([best_s, *(s for cap in caps for s in _seconds(swap, skeleton, moved, cap))])
    return best_s


def floor_found(graph: Graph, costs: Costs, floor: int) -> int:
    """The least bytes that any of these plans takes, `floor` where none takes less."""
    swap = SwapProblem(GraphProblem(graph, costs, Limits.of(graph, floor - 1)), "exhaustive")
    plans = (
        (skeleton, moved) for skeleton in skeletons(graph, costs) for moved in _plans(skeleton)
    )
    lean = (
        skeleton.unbound.offloading(moved)
        for skeleton, moved in plans
        if swap.may_fit(skeleton, moved)
    )
    return min([floor, *(MinimumSchedule.of(graph, plan, costs).floor[0] for plan in lean)])


def _least_s(costs: Costs, skeleton: Skeleton, moved: tuple[IdleInterval, ...]) -> float:
    """No step takes less than its launches, and the copies of one way."""
    link, nbytes = costs.link, sum(gap.nbytes for gap in moved)
    copies_s = len(moved) * link.latency_s + nbytes / min(link.to_host, link.to_device)
    return max(skeleton.unbound.compute_s(costs), copies_s)


def _maps(skeleton: Skeleton) -> list[list[IdleInterval]]:
    """The trips of each map that is not negligible."""
    maps: dict[str, list[IdleInterval]] = {}
    for gap in skeleton.forward_backward_idle:
        maps.setdefault(gap.buffer, []).append(gap)
    sizes = {name: sum(gap.nbytes for gap in gaps) for name, gaps in maps.items()}
    return [gaps for name, gaps in maps.items() if sizes[name] > max(sizes.values()) / 50]


def _count(skeleton: Skeleton) -> int:
    """How many plans of a site are placed at most."""
    return 2 * prod(1 + len(gaps) for gaps in _maps(skeleton)) * len(OPENINGS) * len(CAPS)


def _plans(skeleton: Skeleton) -> Iterator[tuple[IdleInterval, ...]]:
    """The last sections of each map, returning from backward on or from when they left on."""
    options = [[gaps[len(gaps) - n :] for n in range(1 + len(gaps))] for gaps in _maps(skeleton)]
    for choice, besides, opening in product(
        product(*options), ((), skeleton.intra_pass_idle), OPENINGS
    ):
        moved = (gap for gaps in (*choice, besides) for gap in gaps)
        yield tuple(replace(gap, earliest_prefetch=opening(gap)) for gap in moved)


def _seconds(
    swap: SwapProblem, skeleton: Skeleton, moved: tuple[IdleInterval, ...], cap: int
) -> Iterator[float]:
    trial = swap.trial(skeleton, moved, cap)
    if trial is not None:
        try:
            found = swap.placed_after_ordering(trial)
        except FragmentationError:
            return
        if found is not None:
            yield found.seconds
