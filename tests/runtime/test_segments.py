"""Segments of phases with sums over processes: what waits is issued behind what it waits for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.simulated import planned
from tvdnn.engine.build import training_settings
from tvdnn.ops import expand
from tvdnn.ops.builder import Ranks
from tvdnn.ops.loss import OutputLoss
from tvdnn.optim import SGD
from tvdnn.planner.ir.schedule import Action, Lane, Step
from tvdnn.planner.lowering.lane_counters import cross_lane_waits, graph_segment_waits
from tvdnn.runtime.segments import SEGMENT_LAUNCHES, are_followed, behind_sums, segments_of
from tvdnn.trace.trace import trace

SHAPE = 16, 3, 32, 32


def steps_of(policy: str, norm: type[nn.Module], **how: Any) -> Sequence[Step]:
    """The steps of a network on four processes, in small sections and buckets."""
    layers: list[nn.Module] = []
    for inner in (3, 16, 32):
        layers += [nn.Conv2d(inner, max(16, 2 * inner), 3, padding=1), nn.Identity(), nn.ReLU()]
        layers[-2] = norm(layers[-3].out_channels)
    net = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10))
    with torch.no_grad():
        net.eval()(torch.zeros(SHAPE))
    settings = training_settings((OutputLoss(),), SGD(momentum=0.9), "fp32", 1 << 14, None)
    settings = replace(settings, ranks=Ranks(4, 1 << 12, "float32", **how))
    x = torch.empty(SHAPE, device="meta")
    return planned(
        expand(trace(net.train().to("meta"), (x,), ordered=True), settings), policy
    ).steps


@pytest.mark.parametrize("how", [{}, {"early": True}, {"sharded": True}], ids=str)
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.SyncBatchNorm])
@pytest.mark.parametrize("policy", ["keep", "vdnn-all"])
def test_no_step_waits_for_what_is_issued_later(
    policy: str, norm: type[nn.Module], how: dict[str, bool]
) -> None:
    steps = steps_of(policy, norm, **how)
    awaited = cross_lane_waits(steps, 0, len(steps))
    begins = behind_sums(awaited)
    assert begins

    def may_run(index: int) -> bool:
        return all(reached[lane] >= count for lane, count in awaited[index].items())

    segments = list(segments_of(steps, 0, len(steps), begins))
    assert [index for segment in segments for index in segment] == list(range(len(steps)))
    for index, before in graph_segment_waits(steps, segments).items():
        awaited[index] = {**awaited[index], **before}
    reached = dict.fromkeys(Lane, 0)
    for segment in segments:  # nothing that is issued later may be awaited
        branches = {lane: [n for n in segment if steps[n].lane is lane] for lane in Lane}
        sums = branches.pop(Lane.REDUCE)
        while ready := [each for each in branches.values() if each and may_run(each[0])]:
            index = ready[0].pop(0)
            reached[steps[index].lane] = index + 1
        assert not any(branches.values())
        for index in sums:
            assert may_run(index)
            reached[Lane.REDUCE] = index + 1


def test_sums_alone_cut_no_launches_apart() -> None:
    steps = steps_of("keep", nn.BatchNorm2d)
    assert sum(step.lane is Lane.REDUCE for step in steps) > 3
    assert list(segments_of(steps, 0, len(steps))) == [range(len(steps))]


def test_the_host_waits_for_many_launches_not_for_each_sum() -> None:
    assert SEGMENT_LAUNCHES // 4 == 96
    lanes = [Lane.COMPUTE] * 600
    lanes[90:100] = [Lane.OFFLOAD] * 10
    steps = [step_on(lane) for lane in lanes]
    short = [range(end - 10, end) for end in range(10, 210, 10)]
    begins = [segment.stop for segment in short]
    found = are_followed(steps, [*short, range(200, 600)], begins)
    assert [number for number, is_followed in enumerate(found) if is_followed] == [10, 20]


def step_on(lane: Lane) -> Step:
    return Step(lane, Action.LAUNCH, 0, 0, 0, 1, (), ())
