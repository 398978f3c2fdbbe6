"""Small random networks to plan, and the best swap plan of one by exhaustive search."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import inf, prod
from operator import itemgetter

import torch
from torch import nn

from tests.support.drawn_chains import CLASSES, random_costs
from tests.support.lowered import lower
from tvdnn.engine import training_graph
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.lowering.floor import MinimumSchedule
from tvdnn.planner.lowering.idle import IdleInterval
from tvdnn.planner.offload.belady import plans_offloading_all, skeletons
from tvdnn.planner.offload.swap_problem import SwapProblem, placed_if_any
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.problem import GraphProblem
from tvdnn.planner.recompute.skeleton import Skeleton

MOST_PLANS = 4000
LIMITS = (1.0, 0.9, 0.8)
OPENINGS: tuple[Callable[[IdleInterval], int], ...] = (
    lambda idle: idle.earliest_prefetch,
    lambda idle: idle.offload_after + 1,
    lambda idle: idle.needed_by,
)


def small_case(seed: int) -> tuple[Graph, Costs, int] | None:
    """A network of few sections, costs and a budget between the floor and keep's peak.

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
    plans = _swap_plans(graph, costs, budget)
    ranked = sorted(((_least_s(*plan), *plan) for plan in plans), key=itemgetter(0))
    best_s = inf
    for least_s, swap, offloaded in ranked:
        if least_s >= best_s:
            break
        limits = (round(share * swap.capacity) for share in LIMITS)
        best_s = min([best_s, *(s for each in limits for s in _seconds(swap, offloaded, each))])
    return best_s


def floor_found(graph: Graph, costs: Costs, floor: int) -> int:
    """The least bytes that any of these plans takes, `floor` where none takes less."""
    lean = (
        swap.skeleton.offloading(offloaded)
        for swap, offloaded in _swap_plans(graph, costs, floor - 1)
        if swap.may_fit(offloaded)
    )
    return min([floor, *(MinimumSchedule.of(graph, plan, costs).floor[0] for plan in lean)])


def _swap_plans(
    graph: Graph, costs: Costs, budget: int
) -> Iterator[tuple[SwapProblem, tuple[IdleInterval, ...]]]:
    """Yield every choice of idle intervals to offload, of every skeleton."""
    problem = GraphProblem(graph, costs, Budgets.of(graph, budget))
    for skeleton in skeletons(graph, costs):
        swap = SwapProblem(problem, skeleton, "exhaustive")
        for offloaded in _plans(skeleton):
            yield swap, offloaded


def _least_s(swap: SwapProblem, offloaded: tuple[IdleInterval, ...]) -> float:
    """No step takes less than its launches, and the copies of one way."""
    link, nbytes = swap.costs.links[HOST], sum(idle.nbytes for idle in offloaded)
    copies_s = len(offloaded) * link.latency_s + nbytes / min(link.out, link.back)
    return max(swap.compute_s, copies_s)


def _maps(skeleton: Skeleton) -> list[list[IdleInterval]]:
    """The idle sections of each map that is not negligible."""
    maps: dict[str, list[IdleInterval]] = {}
    for idle in skeleton.forward_backward_idle:
        maps.setdefault(idle.buffer, []).append(idle)
    sizes = {name: sum(idle.nbytes for idle in found) for name, found in maps.items()}
    return [found for name, found in maps.items() if sizes[name] > max(sizes.values()) / 50]


def _count(skeleton: Skeleton) -> int:
    """How many plans of a skeleton are placed at most."""
    return 2 * prod(1 + len(found) for found in _maps(skeleton)) * len(OPENINGS) * len(LIMITS)


def _plans(skeleton: Skeleton) -> Iterator[tuple[IdleInterval, ...]]:
    """The last sections of each map, returning from backward on or from when they left on."""
    options = [
        [sections[len(sections) - n :] for n in range(1 + len(sections))]
        for sections in _maps(skeleton)
    ]
    for choice, besides, opening in product(
        product(*options), ((), skeleton.intra_pass_idle), OPENINGS
    ):
        offloaded = (idle for sections in (*choice, besides) for idle in sections)
        yield tuple(replace(idle, earliest_prefetch=opening(idle)) for idle in offloaded)


def _seconds(swap: SwapProblem, offloaded: tuple[IdleInterval, ...], limit: int) -> Iterator[float]:
    found = placed_if_any(swap.placed_after_ordering, swap.trial(offloaded, limit))
    if found is not None:
        yield found.seconds
