"""Rounds: normalized layers block by block, once for each normalization; to the bits of keep."""

import copy
from collections.abc import Callable, Collection

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.planner.test_auto import CLASSES, STEPS
from tests.support.lowered import lower
from tests.support.networks import Concat, Sum
from tests.support.running import random_batches, train
from tests.support.simulated import h200, planned
from tvdnn.engine import training_graph
from tvdnn.engine.virtualize import virtualize
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.plan import Plan
from tvdnn.planner.ir.schedule import Action, Schedule
from tvdnn.planner.lowering.segments import Variant
from tvdnn.planner.policies import auto as auto_policy
from tvdnn.planner.problem import GraphProblem
from tvdnn.planner.recompute.barriers import BarrierStage, Phase
from tvdnn.planner.recompute.candidates import Candidates, find_candidates
from tvdnn.planner.recompute.skeleton import RecomputeChoice, skeleton_of
from tvdnn.planner.verify.check import check

BATCH, SHAPE = 16, (3, 8, 8)


def net() -> nn.Sequential:
    """Two normalized convolutions and a pooling, and once more."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 4)):
        for channels in (inputs, outputs):
            conv = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, CLASSES))


@pytest.fixture
def graph(units_of_one: None) -> Graph:
    x = torch.empty(BATCH, *SHAPE)
    return training_graph(net(), x, optimizer=SGD(momentum=0.9), sections=BATCH, fuse=True)


def plan_of(graph: Graph, found: Candidates, numbers: Collection[int]) -> Plan:
    """The plan with these in rounds, by the least blocks, in which nothing moves."""
    none = (frozenset[str](),) * len(found.regions)
    choice = RecomputeChoice(Variant.MEMORY, (None,) * len(none), none, stages=frozenset(numbers))
    return skeleton_of(graph, found, choice).offloading([])


def order(stage: BarrierStage) -> list[int]:
    """The passes of a stage in program order."""
    return sorted((*stage.makers, *stage.passes))


def told(graph: Graph, half: Phase) -> list[tuple[list[str], list[str]]]:
    """The passes of each round, with marks on those that run again, and the passes behind."""
    names = [pass_.name for pass_ in graph.passes]
    return [
        (
            [
                names[i] + " again" * (i in each.makers)
                for i in sorted((*each.makers, *each.passes))
            ],
            [names[index] for index in each.behind],
        )
        for each in half.stages
    ]


def test_each_normalization_ends_a_round(graph: Graph) -> None:
    first, second = find_candidates(graph, h200(graph)).stages
    again = ["0 forward again", "1 forward again", "3 forward again"]
    assert told(graph, first.forward) == [
        (["0 forward", "1 moments"], ["1 statistics"]),
        (["0 forward again", "1 forward", "3 forward", "4 moments"], ["4 statistics"]),
        ([*again, "4 forward", "6 forward", "7 forward"], []),
    ]
    (sums, behind), (on, _), (last, end) = told(graph, first.backward)
    gradients = ["7 grad_input again", "6 grad_input again"]
    assert sums[-4:] == ["7 grad_weight", "7 grad_input", "6 grad_input", "4 grad_sums"]
    assert behind == ["4 grad_params"]
    assert on == [
        *again,
        *gradients,
        "4 grad_input",
        "3 grad_weight",
        "3 grad_input",
        "1 grad_sums",
    ]
    gradients += ["4 grad_input again", "3 grad_input again"]
    assert (last, end) == ([*again, *gradients, "1 grad_input", "0 grad_weight"], [])
    assert set(first.backward.passes).isdisjoint(second.backward.passes)
    assert first.recompute.buffers == {"0", "2", "3", "5", "6"}
    assert first.recompute.nbytes == sum(graph.buffers[name].nbytes for name in "02356")


def test_what_lies_between_is_there_a_block_at_a_time(graph: Graph) -> None:
    costs = h200(graph)
    found = find_candidates(graph, costs)
    plan = plan_of(graph, found, {0})
    schedule = lower(graph, plan, costs)
    check(schedule)
    block = max(segment.block for segment in plan.segments)
    names = found.stages[0].recompute.buffers
    stays = [stay for stay in schedule.residencies if stay.buffer in names]
    alive = [
        sum(s.nbytes for s in stays if s.steps[0] <= index <= s.steps[-1])
        for index in range(len(schedule.steps))
    ]
    assert 0 < block <= BATCH // 4
    assert 0 < max(alive) <= block * found.stages[0].recompute.nbytes // BATCH


@pytest.mark.parametrize("numbers", [{0}, {1}, {0, 1}])
def test_rounds_have_the_bits_of_keep(graph: Graph, numbers: set[int]) -> None:
    costs = h200(graph)
    schedule = lower(graph, plan_of(graph, find_candidates(graph, costs), numbers), costs)
    check(schedule)
    assert any(step.recompute for step in schedule.steps)
    batches = random_batches(STEPS, (BATCH, *SHAPE), CLASSES, 0)
    kept = train(net(), planned(graph, "keep", None), batches)
    assert train(net(), schedule, batches, order_seed=0).equals(kept)


def normalized_last() -> nn.Sequential:
    """The caller's loss reads a normalized map, whose gradient is changed in place."""
    torch.manual_seed(0)
    layers = [conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 8), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), conv(8, 4), nn.BatchNorm2d(4))


def joined() -> nn.Sequential:
    """A normalized branch beside one that is not, and both normalized together."""
    sides = [nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU()), conv(3, 8)]
    layers = [Concat(sides, [(0, 8)] * 2), nn.BatchNorm2d(16), nn.ReLU(), conv(16, 8)]
    return nn.Sequential(*layers, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32, CLASSES))


def summed() -> nn.Sequential:
    """Two normalized branches of a map that a chain makes."""
    torch.manual_seed(0)
    sides = [nn.Sequential(conv(8, 8), nn.BatchNorm2d(8)) for _ in range(2)]
    layers = [conv(3, 8), nn.ReLU(), Sum(sides, inplace=False), nn.ReLU(), nn.MaxPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, CLASSES))


def conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


@pytest.mark.usefixtures("units_of_one")
def test_maps_made_in_part_are_left_out() -> None:
    """Beside the channels that are made again lie those of others."""
    x = torch.empty(BATCH, *SHAPE)
    graph = training_graph(joined(), x, optimizer=SGD(momentum=0.9), sections=BATCH, fuse=True)
    assert not find_candidates(graph, h200(graph)).stages


@pytest.mark.usefixtures("units_of_one")
def test_rounds_take_passes_from_chains() -> None:
    """The barriers of a fork's branches alternate."""
    made, batches = summed(), random_batches(STEPS, (BATCH, *SHAPE), CLASSES, 0)
    optimizer = SGD(momentum=0.9)
    graph = training_graph(made, batches[0][0], optimizer=optimizer, sections=BATCH, fuse=True)
    costs = h200(graph)
    found = find_candidates(graph, costs)
    passes_of_stages = found.passes_of_stages(range(len(found.stages)))
    assert any(passes_of_stages & chain.passes for chain in found.regions)
    none = (frozenset[str](),) * len(found.regions)
    blocks, stages = (Variant.MEMORY,) * len(none), frozenset(range(len(found.stages)))
    choice = RecomputeChoice(Variant.MEMORY, blocks, none, stages=stages)
    skeleton = skeleton_of(graph, found, choice)
    schedule = lower(graph, skeleton.offloading(skeleton.all_idle), costs)
    check(schedule)
    kept = train(made, planned(graph, "keep", None), batches)
    assert train(made, schedule, batches, order_seed=0).equals(kept)


@pytest.mark.usefixtures("units_of_one")
@pytest.mark.parametrize("make", [net, normalized_last])
def test_torchs_autograd_goes_in_rounds_too(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward runs passes again before it hands out the input of the caller's loss."""

    def search(problem: GraphProblem, policy: str) -> Schedule | None:
        assert policy == "auto"
        found = find_candidates(problem.graph, problem.costs)
        return problem.lowered(plan_of(problem.graph, found, range(len(found.stages))))

    monkeypatch.setattr(auto_policy, "joint_schedule", search)
    ((x, y),) = random_batches(1, (BATCH, *SHAPE), CLASSES, 0)
    made = make()
    kept = virtualize(copy.deepcopy(made), x, policy="keep", sections=BATCH)
    budget = 3 * kept.schedule.peak_nbytes // 4
    tight = virtualize(copy.deepcopy(made), x, budget=budget, sections=BATCH)
    for each in (kept, tight):
        functional.cross_entropy(each(x).flatten(1), y).backward()
    schedule = tight.schedule
    assert any(step.recompute for step in schedule.steps[: schedule.phase_split])
    assert min(step.pass_index for step in schedule.steps if step.action is Action.LAUNCH) == 0
    pairs = zip(kept.parameters(), tight.parameters(), strict=True)
    assert all(torch.equal(mine.grad, theirs.grad) for mine, theirs in pairs)
