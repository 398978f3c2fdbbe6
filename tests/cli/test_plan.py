"""`tvdnn plan`: its tables and files, and plans that do not fit."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.commands import SMALL, Captured, run, table
from tvdnn.experiment.request import make_problem, make_request
from tvdnn.graph import FP8
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.units import KIB, format_bytes


def test_plan_shows_decisions_memory_and_times(capsys: Captured) -> None:
    code, out, err = run(capsys, "plan", *SMALL, "--policy", "vdnn-all", "--hardware", "A100")
    lines = table(out)
    assert code == 0
    assert lines[0] == "13 feature maps"
    assert "0 32x28x28x6 588.00 KiB 16 offload input of 2" in lines
    assert "7 32x120 15.00 KiB 1 keep stays until 8 grad_input has read it" in lines
    assert "device memory at its fullest" in lines
    assert [line.split()[0] for line in lines if "busy" in line] == [
        "compute",
        "offload",
        "prefetch",
    ]
    assert "lenet5(32) 32x32 fp32, simulated on A100" in lines
    assert any(line.startswith("vdnn-all none ") for line in lines)
    assert err.splitlines() == ["lenet5(32): tracing", "lenet5(32): planning"]


def test_a_lossy_plan_is_called_lossy(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    options = ("--policy", "gist-lossy:fp10", "--json", path)
    code, out, _ = run(capsys, "plan", *SMALL, *options)
    assert code == 0
    line = next(line for line in table(out) if line.startswith("gist-lossy:fp10 none "))
    assert line.endswith(" lossy")
    plan = json.loads(path.read_text())
    assert plan["row"]["lossy"]
    forms = {row["decision"] for row in plan["maps"]}
    assert "fp10 (lossy)" in forms
    assert "bits + fp10 (lossy)" in forms


def test_plan_writes_the_same_as_json(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run(capsys, "plan", *SMALL, "--policy", "vdnn-all", "--json", path)[0] == 0
    plan = json.loads(path.read_text())
    assert set(plan) == {"row", "maps", "floor_bytes"}
    assert plan["floor_bytes"] == plan["row"]["floor_bytes"] > 0
    assert (plan["row"]["simulated"], plan["row"]["hardware"]) == (True, "H200")
    assert {row["name"] for row in plan["maps"] if row["decision"] == "offload"} == {
        *("input", "0", "2", "3")
    }
    moved = sum(row["nbytes"] for row in plan["maps"] if row["decision"] == "offload")
    assert plan["row"]["offloaded_bytes"] == moved


def test_json_on_standard_output_stands_there_alone(capsys: Captured) -> None:
    code, out, err = run(capsys, "plan", *SMALL, "--json", "-")
    assert code == 0
    assert json.loads(out)["row"]["policy"] == "auto"
    assert "feature maps" in err


def test_a_plan_that_does_not_fit_is_1_with_its_floor(capsys: Captured) -> None:
    code, out, err = run(capsys, "plan", *SMALL, "--budget", "100KiB", "--json", "-")
    plan = json.loads(out)
    assert code == 1
    assert (plan["maps"], plan["row"]["infeasible"]) == ([], True)
    assert plan["floor_bytes"] > 100 * KIB
    assert re.search(r"^error: budget 100\.00 KiB is below the floor .* set by ", err, re.M)


def test_images_that_do_not_fit_name_the_layer(capsys: Captured) -> None:
    """The error names no line: none of the user's code has run."""
    code, _, err = run(capsys, "plan", "lenet5", "--batch", "2", "--image-size", "28")
    layer = r"7: Linear\(in_features=400, out_features=120, bias=True\)"
    assert code == 2
    assert re.search(rf"^error: {layer} does not take a tensor of shape \(2, 256\): ", err, re.M)
    assert ".py:" not in err


@pytest.mark.usefixtures("few_trials")
def test_a_plan_is_feasible_at_the_floor_it_names(capsys: Captured) -> None:
    _, out, _ = run(capsys, "plan", *SMALL, "--budget", "100KiB", "--json", "-")
    floor = json.loads(out)["floor_bytes"]
    code, out, _ = run(capsys, "plan", *SMALL, "--budget", str(floor), "--json", "-")
    assert code == 0
    assert json.loads(out)["row"]["planned_peak_bytes"] <= floor
    _, least, _ = run(capsys, "plan", *SMALL, "--budget", "min", "--json", "-")
    assert json.loads(least)["row"] == json.loads(out)["row"]


def test_a_host_budget_too_small_is_1(capsys: Captured) -> None:
    limits = ("--policy", "vdnn-all", "--host-budget", "64KiB")
    code, _, err = run(capsys, "plan", *SMALL, *limits)
    assert code == 1
    assert re.search(r"^error: vdnn-all keeps .* on the host", err, re.M)


def test_every_model_can_be_planned(capsys: Captured) -> None:
    names = ("lenet5", "alexnet", "overfeat", "nin", "vgg11-bn", "ResNet18", "densenet121")
    for name in names:
        code, out, _ = run(capsys, "plan", name, "--batch", "2", "--json", "-")
        assert (code, json.loads(out)["row"]["net"]) == (0, name)


def test_a_ladder_shows_the_peak_of_each_means(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    code, out, err = run(capsys, "plan", *SMALL, "--ladder", "--json", path)
    rungs = json.loads(path.read_text())
    means = ["none", "+ liveness", "+ offload", "+ recompute", "+ shortest launches"]
    means.append("+ fewest sums")
    assert code == 0
    assert [rung["means"] for rung in rungs] == means
    peaks = [rung["nbytes"] for rung in rungs]
    assert peaks == sorted(peaks, reverse=True)
    lines = table(out)
    assert lines[0] == "least peaks of superneurons, lenet5(32) 32x32 fp32"
    for rung in rungs:
        share = f"{rung['nbytes'] / peaks[0]:.0%}"
        assert f"{rung['means']} {format_bytes(rung['nbytes'])} {share} {rung['step']}" in lines
    assert err.splitlines() == ["lenet5(32): planning"]


def test_a_ladder_is_of_one_policy_and_no_budget(capsys: Captured) -> None:
    code, _, err = run(capsys, "plan", *SMALL, "--ladder", "--policy", "vdnn-all")
    assert code == 2
    assert "vdnn-all has no ladder of peaks; choose one of superneurons" in err
    code, _, err = run(capsys, "plan", *SMALL, "--ladder", "--budget", "1GiB")
    assert code == 2
    assert "--ladder shows least peaks: leave out --budget, --sweep and -o" in err


def test_what_the_host_cannot_hold_goes_to_a_file(capsys: Captured) -> None:
    given = ("plan", *SMALL, "--policy", "vdnn-all", "--host-budget", "600KiB", "--json", "-")
    code, out, err = run(capsys, *given, "--file-budget", "none")
    assert code == 0
    plan = json.loads(out)
    assert plan["row"]["file_bytes"] > 0
    assert 0 < plan["row"]["host_bytes"] <= 600 * KIB
    assert "offload to file" in {row["decision"] for row in plan["maps"]}
    assert [line.split()[:2] for line in err.splitlines() if "busy" in line][-2:] == [
        ["file", "write"],
        ["file", "read"],
    ]
    code, _, err = run(capsys, *given)
    assert code != 0
    assert "above the host budget 600.00 KiB; raise host_budget" in err


@pytest.mark.usefixtures("few_trials")
def test_a_plan_that_may_round_is_autos_and_no_slower(capsys: Captured) -> None:
    budget = ("--budget", "min")
    code, out, _ = run(capsys, "plan", *SMALL, *budget, "--allow", "lossy:0.03", "--json", "-")
    assert code == 0
    rounded = json.loads(out)["row"]
    assert rounded["policy"] == "auto"
    _, out, _ = run(capsys, "plan", *SMALL, *budget, "--json", "-")
    assert rounded["predicted_s"] <= json.loads(out)["row"]["predicted_s"]


def test_a_limit_allows_codecs_in_the_problem_of_a_command() -> None:
    request = make_request("resnet18", 2, 32, "bf16", None, None, None, "lossy:0.03")
    costs = Roofline(load("H200"), "bf16")
    problem = make_problem(request, costs)
    assert set(problem.lossy.values()) == {FP8}
    assert not make_problem(replace(request, allowed=None), costs).lossy


def test_limits_of_rounding_are_checked(capsys: Captured) -> None:
    for command in ("plan", "bench", "train"):
        code, _, err = run(capsys, command, "lenet5", "--allow", "lossy:3%")
        assert code == 2
        assert re.search(r"^error: allow='lossy:3%' is not known; write for example", err, re.M)
        wrong = ("lenet5", "--allow", "lossy:0.03", "--policy", "keep")
        code, _, err = run(capsys, command, *wrong)
        assert code == 2
        assert re.search(r"^error: policy 'keep' takes no allow=\"lossy:0.03\"; choose", err, re.M)


def test_plan_tells_what_is_exposed_of_sums_over_processes(
    capsys: Captured, tmp_path: Path
) -> None:
    path, together = tmp_path / "plan.json", ("--world", "4", "--link", "100gbe")
    code, out, _ = run(capsys, "plan", *SMALL, "--policy", "keep", *together, "--json", path)
    summing = json.loads(path.read_text())["summing"]
    assert code == 0
    assert "Simulated: 4 processes sum" in out
    assert any(line.startswith("reduce") for line in table(out))
    assert summing["world"] == 4
    assert 0 < summing["exposed_s"] <= summing["summing_s"]
    code, out, _ = run(
        capsys,
        "plan",
        *SMALL,
        "--policy",
        "keep",
        *together,
        "--shard",
        "optimizer",
        "--json",
        path,
    )
    sharded = json.loads(path.read_text())["summing"]
    assert code == 0
    assert sharded["summed_bytes"] == pytest.approx(summing["summed_bytes"], rel=0.01)
    assert sharded["summing_s"] > 0.9 * summing["summing_s"]
    assert run(capsys, "plan", *SMALL, "--shard", "optimizer")[0] == 2
    code, _, err = run(capsys, "plan", *SMALL, "--world", "2", "--link", "Token Ring")
    assert code == 2
    assert "NVLink, PCIe, 100GbE" in err
