"""`tvdnn bench`: its rows, simulated and measured, and the main job."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.commands import SMALL, Captured, run, table
from tvdnn.cli import bench, digits
from tvdnn.cli.output import messages
from tvdnn.ops.chunk_size import LEAST_CHUNK_SIZE
from tvdnn.units import MIB


def bench_rows(capsys: Captured, *arguments: str) -> list[dict[str, Any]]:
    code, out, _ = run(capsys, "bench", *arguments, "--json", "-")
    assert code == 0
    rows: list[dict[str, Any]] = json.loads(out)
    return rows


def test_a_simulated_bench_has_a_row_a_policy_and_budget(capsys: Captured) -> None:
    choice = ("--policy", "keep,vdnn-all", "--budget", "none,1MiB", "--hardware", "titan-x maxwell")
    rows = bench_rows(capsys, *SMALL, *choice)
    assert [(row["policy"], row["budget_bytes"], row["infeasible"]) for row in rows] == [
        ("keep", None, False),
        ("vdnn-all", None, False),
        ("keep", MIB, True),
        ("vdnn-all", MIB, True),
    ]
    assert [row["slowdown"] for row in rows] == [
        1.0,
        rows[1]["predicted_s"] / rows[0]["predicted_s"],
        None,
        None,
    ]
    assert {row["hardware"] for row in rows} == {"Titan X Maxwell"}
    assert all(row["simulated"] and row["step_s"] is None for row in rows)


def test_bench_shows_each_feasible_step_in_small(capsys: Captured) -> None:
    choice = ("--policy", "keep,vdnn-all", "--budget", "none,1MiB", "--hardware", "H200")
    code, out, _ = run(capsys, "bench", *SMALL, *choice)
    lines = table(out)
    starts = [index for index, line in enumerate(lines) if line.startswith("a step of ")]
    assert code == 0
    assert [lines[index] for index in starts] == [
        "a step of keep without a budget",
        "a step of vdnn-all without a budget",
    ]
    for index in starts:
        words = [line.split()[0] for line in lines[index + 1 : index + 5]]
        assert words == ["compute", "offload", "prefetch", "memory"]


def test_nothing_that_fits_is_1(capsys: Captured) -> None:
    code, out, err = run(capsys, "bench", *SMALL, "--budget", "1KiB", "--hardware", "H200")
    assert code == 1
    assert sum("infeasible" in line for line in table(out)) == 3
    assert err.count("is below the floor") == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures on the CPU")
def test_a_bench_on_the_cpu_runs_every_policy_to_the_same_losses(capsys: Captured) -> None:
    choice = ("--policy", "keep,vdnn-conv:m,vdnn-all", "--budget", "none,2MiB", "--steps", "3")
    rows = bench_rows(capsys, *SMALL, *choice, "--feedback")
    ran = [row for row in rows if not row["infeasible"]]
    assert [row["policy"] for row in ran].count("vdnn-all") == 2
    assert all(row["losses"] == rows[0]["losses"] and row["equal"] for row in ran)
    assert all((len(row["losses"]), row["loss"]) == (3, row["losses"][-1]) for row in ran)
    assert all(row["step_s"] > 0 and row["planned_peak_bytes"] <= 3 * MIB for row in ran)
    assert all(row["predicted_s"] is None and row["stall_s"] is None for row in ran)
    assert all(row["feedback"] for row in ran)
    assert all({"tracing", "planning", "running"} < row["first_step_s"].keys() for row in ran)
    assert all(row["versions"]["torch"] == torch.__version__ for row in rows)


@pytest.mark.gpu
def test_a_bench_on_the_gpu_stays_inside_its_plan(capsys: Captured) -> None:
    net = ("vgg11", "--batch", "32", "--image-size", "64", "--chunk-size", "1MiB")
    choice = ("--policy", "keep,vdnn-all,vdnn-conv:m", "--steps", "3")
    rows = bench_rows(capsys, *net, *choice)
    assert all(row["equal"] and row["losses"] == rows[0]["losses"] for row in rows)
    assert all(row["peak_bytes"] <= 1.01 * row["planned_peak_bytes"] for row in rows)
    assert all(row["predicted_s"] > 0 and row["stall_s"] is not None for row in rows)
    assert {row["hardware"] for row in rows} == {torch.cuda.get_device_name()}


@pytest.mark.gpu
def test_references_on_the_gpu_are_labelled(capsys: Captured) -> None:
    choice = ("--kernels", "torch", "--policy", "keep", "--steps", "2")
    (row,) = bench_rows(capsys, "lenet5", "--batch", "32", *choice)
    assert "outside the memory guarantee" in row["versions"]["kernels"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="what runs where there is no GPU")
def test_the_main_job_trains_digits_and_simulates_the_headline(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A small network without budgets stands for the headline. tests/planner has its plans."""
    policies = [policy for policy, _ in bench.HEADLINE_CASES]
    monkeypatch.setattr(digits, "STEPS", 4)
    monkeypatch.setattr(bench, "HEADLINE", ("lenet5", 256, "bf16"))
    monkeypatch.setattr(bench, "HEADLINE_CASES", [(policy, None) for policy in policies])
    path = tmp_path / "rows.json"
    code, out, err = run(capsys, "bench", "--json", path)
    lines = table(out)
    assert code == 0
    assert [line for line in lines if "32x32" in line] == [
        "lenet5(64) 32x32 fp32, measured on CPU (x86_64)",
        "lenet5(256) 32x32 bf16, simulated on H200",
    ]
    assert [line.split()[0] for line in lines if line.split()[0] in policies] == [
        "keep",
        "keep",  # of the table of first steps
        *policies,
    ]
    assert sum(line.endswith("as keep") for line in lines) == 2
    assert "There is no GPU here." in err
    assert "weights the same as those of keep, bit for bit" in err
    assert re.search(r"accuracy on 359 digits not trained on: \d+\.\d%", err)
    rows = json.loads(path.read_text())[-len(policies) :]
    assert [row["policy"] for row in rows] == policies
    assert all(row["simulated"] and row["hardware"] == "H200" for row in rows)
    assert all(row["chunk_size"] == LEAST_CHUNK_SIZE for row in rows)


def test_without_scikit_learn_the_main_job_says_so(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "STEPS", 2)
    monkeypatch.setattr(digits, "has_digits", lambda: False)
    rows = digits.train_digits(messages(), "torch")
    assert "scikit-learn is not installed" in capsys.readouterr().err
    assert [row.equal for row in rows] == [True, True]
