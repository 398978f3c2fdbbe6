"""The zoo's launches: rows of a simulated step, summed by kind, role and shape."""

import pytest
import torch
from torch import nn

from bench.zoo.launch_rows import lines, rows_of, sheet_of
from tvdnn.engine.build import training_graph
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.make import Problem
from tvdnn.planner.timing.simulate import simulate


def test_rows_sum_launches_of_one_shape() -> None:
    convs = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
    net = nn.Sequential(nn.Conv2d(3, 8, 1), *convs, nn.Flatten(), nn.LazyLinear(4))
    x = torch.empty(4, 3, 8, 8)
    net(x)
    slow, fast = Roofline(load("A100"), "fp32"), Roofline(load("H200"), "fp32")
    schedule = Problem(training_graph(net, x), slow).schedule("keep")
    rows = rows_of(schedule, simulate(schedule, slow), slow, fast)
    (middle,) = (row for row in rows if row.role == "forward" and row.count == 3)
    assert (middle.kind, middle.settings["kernel"]) == ("conv2d", (3, 3))
    assert sum(row.count for row in rows) == len(schedule.graph.passes)
    assert [row.lost_s for row in rows] == sorted((row.lost_s for row in rows), reverse=True)
    for row in rows:
        assert row.step_s == pytest.approx(row.alone_s)
    assert sum(row.roofline_s for row in rows) < sum(row.alone_s for row in rows)
    first, *others = lines("net", 1e-3, rows)
    assert first.startswith("net: 1.00 ms a step")
    assert len(others) == min(12, len(rows))


def test_data_sheets_follow_from_names() -> None:
    assert sheet_of("NVIDIA H100 80GB HBM3") == "H100"
    assert sheet_of("another") == "H200"
