"""Traces and figures of a step against its schedule and timeline."""

import json
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.searching import few_trials
from tvdnn import cli
from tvdnn.engine import training_graph
from tvdnn.errors import InputError
from tvdnn.experiment import processes
from tvdnn.models.resnet import BasicBlock, ResNet
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import prefetched_nbytes
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.ir.timeline import Timeline, copy_waits
from tvdnn.planner.make import make_schedule
from tvdnn.planner.timing.memory_profile import memory_profile
from tvdnn.planner.timing.simulate import simulate
from tvdnn.report import figures
from tvdnn.report.traces import Held, Work, chrome_trace, moments
from tvdnn.units import MIB

COSTS = Roofline(load("H200"), "fp32")
EACH = processes.Processes.each
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """One that moves maps, makes some again and waits."""
    net = ResNet(BasicBlock, (1, 1, 1, 1), width=0.25).to("meta")
    x = torch.empty(16, 3, 64, 64, device="meta")
    graph = training_graph(net, x, chunk_size=MIB // 8, fuse=True)
    budget = make_schedule(graph, COSTS, policy="keep").peak_nbytes * 5 // 9
    with few_trials():
        return make_schedule(graph, COSTS, policy="auto", budget=budget)


@pytest.fixture(scope="module")
def timeline(schedule: Schedule) -> Timeline:
    return simulate(schedule, COSTS)


def test_a_trace_has_every_step_on_its_lane(schedule: Schedule, timeline: Timeline) -> None:
    events = chrome_trace(schedule, timeline, title="a step")["traceEvents"]
    assert json.loads(json.dumps(events)) == events
    spans = [e for e in events if e["ph"] == "X" and e["cat"] != Work.STALL.value]
    assert len(spans) == len(schedule.steps)
    for event, span in zip(spans, timeline.spans, strict=True):
        assert event["tid"] == span.lane
        assert event["ts"] == pytest.approx(span.start_s * 1e6)
        assert event["ts"] + event["dur"] == pytest.approx(span.end_s * 1e6)
        assert event["name"].startswith(schedule.step_name(span.step))
    copied = Counter[int]()
    for event in spans:
        copied[event["tid"]] += event["args"].get("bytes", 0)
    assert copied[Lane.OFFLOAD] == schedule.offloaded_nbytes > 0
    assert copied[Lane.PREFETCH] == prefetched_nbytes(schedule.graph, schedule.plan)
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {lane.name.lower() for lane in (Lane.COMPUTE, Lane.OFFLOAD, Lane.PREFETCH)}


def test_a_trace_marks_stalls_and_what_is_made_again(
    schedule: Schedule, timeline: Timeline
) -> None:
    events = chrome_trace(schedule, timeline, title="a step")["traceEvents"]
    by_work = {work: [e for e in events if e.get("cat") == work.value] for work in Work}
    stalls = [(e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in by_work[Work.STALL]]
    waits = copy_waits(schedule, timeline.spans)
    assert stalls == [pytest.approx(wait) for wait in waits]
    assert all(event["name"].endswith(" again") for event in by_work[Work.AGAIN])
    assert len(by_work[Work.AGAIN]) == sum(
        step.recompute and schedule.graph.passes[step.pass_index].direction.value == "forward"
        for step in schedule.steps
    )
    assert by_work[Work.AGAIN]
    assert by_work[Work.OFFLOAD]
    assert by_work[Work.UPDATE]


def test_memory_by_purpose_adds_up(schedule: Schedule, timeline: Timeline) -> None:
    found = list(moments(schedule, timeline))
    fixed = schedule.graph.fixed_nbytes
    expected = [fixed + sum(kinds.values()) for _, kinds in memory_profile(schedule, timeline)]
    assert [sum(moment.nbytes.values()) for moment in found] == expected
    assert max(expected) <= schedule.peak_nbytes
    for what in Held:
        assert any(moment.nbytes[what.value] for moment in found), what
    events = chrome_trace(schedule, timeline, title="a step")["traceEvents"]
    counters = [event["args"] for event in events if event["ph"] == "C"]
    assert counters == [dict(moment.nbytes) for moment in found]


@pytest.mark.parametrize("suffix", figures.SUFFIXES)
def test_a_figure_is_written(
    schedule: Schedule, timeline: Timeline, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"step{suffix}"
    figures.draw(schedule, timeline, path, title="a step", kept_nbytes=schedule.peak_nbytes)
    written = path.read_bytes()
    assert written.startswith(PNG) if suffix == ".png" else b"</svg>" in written


def test_figures_say_what_they_need(
    schedule: Schedule, timeline: Timeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"step.gif ends in neither .png nor .svg"):
        figures.draw(schedule, timeline, tmp_path / "step.gif", title="", kept_nbytes=None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r'pip install "tvdnn\[plot\]"'):
        figures.draw(schedule, timeline, tmp_path / "step.png", title="", kept_nbytes=None)


def test_the_command_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    asked = ["trace", "lenet5", "--batch", "64", "--policy", "vdnn-all", "--hardware", "H200"]
    assert cli.main([*asked, "-o", str(path)]) == 0
    trace = json.loads(path.read_text())
    assert trace["otherData"] == {"times": "predicted"}
    assert "simulated on H200" in capsys.readouterr().out
    assert cli.main([*asked, "-o", str(tmp_path / "step.txt")]) == 2
    assert cli.main([*asked, "--budget", "1KiB", "-o", str(path)]) == 1


def each_sent(
    self: processes.Processes, jobs: Sequence[Callable[[], Any]], progress: Callable[[float], None]
) -> Iterator[tuple[int, Any]]:
    """The results of jobs as another process would receive them."""
    return EACH(self, [pickle.loads(pickle.dumps(job)) for job in jobs], progress)


@pytest.mark.slow
def test_a_sweep_never_takes_longer_in_more_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROCESSES", 1)
    monkeypatch.setattr(processes.Processes, "each", each_sent)
    path, figure = tmp_path / "rows.json", tmp_path / "sweep.svg"
    asked = ["plan", "lenet5", "--batch", "32", "--chunk-size", "64KiB", "--dtype", "fp32"]
    policies = ("auto", "vdnn-dyn")
    swept = [*asked, "--policy", ",".join(policies), "--sweep", "6"]
    assert cli.main([*swept, "-o", str(figure), "--json", str(path)]) == 0
    assert b"</svg>" in figure.read_bytes()
    out = capsys.readouterr().out
    assert "lenet5(32) 32x32 fp32, simulated on H200" in out
    rows = json.loads(path.read_text())
    assert [row["policy"] for row in rows] == [policy for policy in policies for _ in range(6)]
    for policy in policies:
        found = [row for row in rows if row["policy"] == policy]
        budgets = [row["budget_bytes"] for row in found]
        assert budgets == sorted(budgets)
        feasible = [row for row in found if not row["infeasible"]]
        assert feasible == found[-len(feasible) :]
        assert all(row["planned_peak_bytes"] <= row["budget_bytes"] for row in feasible)
        times = [row["predicted_s"] for row in feasible]
        assert times == sorted(times, reverse=True)
        assert all(row["bound_s"] <= row["predicted_s"] * (1 + 1e-6) for row in feasible)
    assert not rows[0]["infeasible"]


def test_a_sweep_and_its_figure_are_asked_for_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "lenet5", "-o", str(tmp_path / "a.svg")]) == 2
    assert "-o, are for --sweep" in capsys.readouterr().err
    assert cli.main(["plan", "lenet5", "--policy", "keep,auto"]) == 2
    assert cli.main(["plan", "lenet5", "--sweep", "1"]) == 2
    assert cli.main(["plan", "lenet5", "--sweep", "2", "-o", str(tmp_path / "a.gif")]) == 2
