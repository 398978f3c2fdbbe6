"""The zoo: its list, rows of small networks on a CPU, runs that go on, and the 3% rule."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.cross_entropies import cross_entropies
from bench.side_by_side import SideBySide
from bench.tables import RESULTS
from bench.turn import Turn
from bench.zoo import by_torch, by_tvdnn
from bench.zoo import planned as zoo_planned
from bench.zoo.__main__ import Job, Zoo, rows_of
from bench.zoo.networks import ANCHORS, NAMES, NETWORKS, network_named
from bench.zoo.planned import planned
from bench.zoo.rows import (
    AUTO,
    COMPILED,
    EAGER,
    GRAPHED,
    HALF,
    KEEP,
    TVDNNS_WAYS,
    USUAL,
    VIRTUALIZED,
    RowFile,
    of_gpu,
)

GIB = 2**30
ABOUT = {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.15", "triton": "3.9", "cudnn": "9"}
ABOUT |= {"commit": "c0ffee1"}


class Counted:
    """A lock that counts how often it is taken and given back."""

    def __init__(self) -> None:
        self.held = 0
        self.counts = Counter[str]()

    def acquire(self) -> None:
        self.held = 1
        self.counts["acquire"] += 1

    def release(self) -> None:
        self.held = 0
        self.counts["release"] += 1


class Answers(SideBySide):
    """Children that print these rows, or fail as told, one child a list."""

    def __init__(self, *children: Sequence[dict[str, Any] | Exception]) -> None:
        super().__init__()
        self._children = list(children)
        self.asked: list[str] = []

    def lines(self, command: Any, environment: Any = None) -> Iterator[Any]:
        self.asked.append(command[-1])
        for each in self._children.pop(0):
            if isinstance(each, Exception):
                raise each
            yield (
                Namespace(stopped_s=lambda start_s, end_s: (end_s - start_s) / 4),
                json.dumps(each) + "\n",
            )


def small() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16, 10))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(4, 3, 8, 8), torch.randint(10, (4,))


def test_the_list_has_at_most_two_of_a_family_and_powers_of_two() -> None:
    assert len(set(NAMES)) == len(NAMES) == 47
    assert max(Counter(each.family for each in NETWORKS).values()) == 2
    assert sum(each.library == "timm" for each in NETWORKS) == 12
    assert all(each.batch & (each.batch - 1) == 0 for each in NETWORKS)
    assert set(ANCHORS) <= set(NAMES)
    assert len(ANCHORS) == 3
    assert network_named("fcn_resnet50").target_shape == (16, 480, 480)
    assert network_named("googlenet").loss_weights == (1.0, 0.3, 0.3)


def test_losses_of_several_outputs_are_weighted_and_added() -> None:
    _, y = batch()
    one, other = torch.randn(4, 10), torch.randn(4, 10)
    each = [functional.cross_entropy(each, y) for each in (one, other)]
    expected = each[0] + 0.3 * each[1]
    both = {"out": one, "aux": other}
    assert torch.allclose(cross_entropies(both, y, (1.0, 0.3), torch.float32), expected)
    assert torch.equal(cross_entropies(one, y, (1.0,), torch.float32), each[0])


@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_torchs_row_is_measured_in_its_turn(dtype: str) -> None:
    lock = Counted()
    row = by_torch.measured(small, *batch(), EAGER, dtype, Turn(lock))
    assert set(row) == {"first_step_s", "step_s", "spans"}
    assert min(row["first_step_s"], row["step_s"]) > 0.0
    assert lock.held


def test_our_rows_have_what_the_tables_show() -> None:
    measured = partial(by_tvdnn.measured, small, *batch())
    rows = {way: measured(way, "fp32", Turn(Counted())) for way in (KEEP, AUTO, VIRTUALIZED)}
    for way, row in rows.items():
        assert row["policy"] == (KEEP if way == KEEP else AUTO)
        assert row["first_step_s"] > row["made_s"] > 0.0
        assert row["step_s"] > 0.0
        assert row["planned_peak_bytes"] > 0
    assert rows[AUTO]["digest"] == rows[KEEP]["digest"]
    assert rows[AUTO]["predicted_s"] > 0.0
    peak = rows[KEEP]["planned_peak_bytes"]
    inside = measured(HALF, "fp32", Turn(Counted()), budget=peak - 512)
    assert inside["planned_peak_bytes"] <= inside["budget_bytes"] == peak - 512
    assert inside["digest"] == rows[KEEP]["digest"]


def test_a_budget_below_the_floor_is_a_row_with_the_floor() -> None:
    row = by_tvdnn.measured(small, *batch(), HALF, "fp32", Turn(Counted()), budget=1000)
    assert row["floor_bytes"] > 1000
    assert "floor" in row["error"]
    assert "step_s" not in row


def test_a_way_that_fails_has_a_row_and_does_not_end_the_others() -> None:
    job = Job("resnet50", (EAGER, COMPILED, GRAPHED), "bf16")
    times = {"first_step_s": 2.0, "step_s": 0.05, "spans": {"first_step_s": [(3.0, 5.0)]}}
    children = Answers(
        [times, TimeoutError(COMPILED)], [ChildProcessError("RuntimeError: no such kernel")]
    )
    rows = list(rows_of(children, job))
    assert [row["way"] for row in rows] == [EAGER, COMPILED, GRAPHED]
    assert (rows[0]["first_step_s"], rows[0]["caches"]) == (1.5, "empty")  # stopped for a quarter
    assert rows[1]["error"] == "over 180 s"
    assert rows[2]["error"] == "RuntimeError: no such kernel"
    assert {row["batch"] for row in rows} == {256}


def test_ended_children_leave_no_row() -> None:
    children = Answers([TimeoutError(EAGER)])
    children.ended = True
    assert list(rows_of(children, Job("resnet50", (EAGER,), "bf16"))) == []


def zoo(folder: Path, run: str = "first", **options: Any) -> Zoo:
    chosen = {"dtype": "bf16", "torch": False, "ours": False, "ways": USUAL, "jobs": 1}
    return Zoo(Namespace(output=folder, **(chosen | options)), ABOUT, run)


def timed(step_s: float, **more: Any) -> dict[str, Any]:
    return {"first_step_s": 9.0, "step_s": step_s, **more}


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    first = zoo(tmp_path, torch=True)
    peak = {"measured_peak_bytes": 4 * GIB}
    first.measure(Answers([timed(0.05), timed(0.04, **peak), timed(0.03)]), "resnet18")
    assert [row["way"] for row in first.torchs_rows] == [EAGER, COMPILED, GRAPHED]

    second = zoo(tmp_path, "second")
    children = Answers([timed(0.02, policy=AUTO)] * 3)
    second.measure(children, "resnet18")
    assert [row["way"] for row in second.tvdnns_rows] == [AUTO, KEEP, HALF]
    assert f'"half_bytes": {2 * GIB}' in children.asked[0]
    third = zoo(tmp_path, "third", ways=[*USUAL, VIRTUALIZED])
    third.measure(Answers([timed(0.02)]), "resnet18")
    assert [row["way"] for row in third.tvdnns_rows] == list(TVDNNS_WAYS)
    assert len(RowFile(tmp_path / "torch_h100.json").rows) == 3


def test_other_versions_are_measured_anew(tmp_path: Path) -> None:
    zoo(tmp_path, torch=True).measure(Answers([timed(0.05)] * 3), "resnet18")
    other = Zoo(zoo(tmp_path).options, ABOUT | {"torch": "2.16"}, "second")
    assert len(other.torchs.rows) == 3
    assert other.torchs_rows == []


def test_a_way_that_lacked_memory_beside_others_is_left_for_another_run(tmp_path: Path) -> None:
    error = ChildProcessError("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    beside = zoo(tmp_path, torch=True, jobs=2)
    beside.measure(Answers([timed(0.05), error], [timed(0.05)]), "resnet18")
    assert [row["way"] for row in beside.torchs_rows] == [EAGER, GRAPHED]
    alone = zoo(tmp_path, torch=True)
    alone.measure(Answers([error]), "resnet18")
    assert "out of memory" in alone.torchs_rows[-1]["error"]


@pytest.mark.parametrize(("again_s", "agrees"), [(0.0411, True), (0.0413, False)])
def test_anchors_agree_within_three_percent(
    tmp_path: Path, again_s: float, agrees: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    anchor = ANCHORS[0]
    first = zoo(tmp_path, torch=True)
    first.measure(Answers([timed(0.06), timed(0.04), timed(0.05)]), anchor)
    first.measure_anchors(Answers())
    assert first.agrees()  # measured in this very run
    second = zoo(tmp_path, "second")
    second.measure_anchors(Answers([timed(0.06)], [timed(again_s)]))
    assert second.agrees() is agrees
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"anchor {anchor}, eager: 60.00 ms, 60.00 ms before: agrees"
    assert told[1].endswith("agrees" if agrees else "DIFFERS")
    second.measure_anchors(Answers())  # once in a run
    assert [row["step_s"] for row in second.torchs_rows[:3]] == [0.06, 0.04, 0.05]


def test_an_anchor_that_fails_does_not_agree(tmp_path: Path) -> None:
    zoo(tmp_path, torch=True).measure(Answers([timed(0.06)] * 3), ANCHORS[0])
    second = zoo(tmp_path, "second")
    second.measure_anchors(Answers([timed(0.06)], [ChildProcessError("lost")]))
    assert not second.agrees()


def test_gpus_have_files_of_their_own() -> None:
    assert of_gpu("NVIDIA H100 80GB HBM3") == "h100"
    assert of_gpu("NVIDIA H200") == "h200"


class Refused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x)


def test_a_small_network_is_planned_without_a_budget_and_in_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zoo_planned, "compiled_nbytes", lambda *_: 100_000)
    like = replace(network_named("resnet18"), batch=64, side=8)
    row = planned(like, small().to("meta"), "bf16")
    about = (row["net"], row["batch"], row["hardware"], row["simulated"])
    assert about == ("resnet18", 64, ABOUT["gpu"], True)
    assert row["auto_peak_bytes"] <= row["keep_peak_bytes"]
    assert row["auto_s"] <= row["keep_s"]
    assert row["half_budget_bytes"] == 50_000
    assert ("half_s" in row) != ("half_floor_bytes" in row)
    assert row["estimated_share"] == 1.0
    assert "refused" not in row


def test_a_refused_network_is_a_row_with_the_line() -> None:
    like = replace(network_named("resnet18"), batch=2, side=8)
    row = planned(like, nn.Sequential(small()[0], Refused()).to("meta"), "bf16")
    assert "svdvals" in row["refused"]
    assert Path(__file__).name in row["refused"]
    assert "keep_s" not in row


def test_no_network_of_the_list_is_refused_or_unplanned() -> None:
    rows = json.loads((RESULTS / "plans" / "zoo.json").read_text())["rows"]
    assert [row["net"] for row in rows] == list(NAMES)
    for row in rows:
        network = network_named(row["net"])
        assert (row["batch"], row["side"]) == (network.batch, network.side)
        assert row["auto_peak_bytes"] <= row["keep_peak_bytes"]
        if "half_budget_bytes" in row:
            assert row["half_peak_bytes"] <= row["half_budget_bytes"]
    assert sum("half_s" in row for row in rows) >= 30
