"""The command line: exit codes, what goes to which stream, tables and JSON, resume to the bit."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tvdnn.cli import bench, digits, doctor, main
from tvdnn.cli.output import messages
from tvdnn.planner.make import DEFAULT_CHUNK_SIZE
from tvdnn.units import GIB, KIB, MIB

Captured = pytest.CaptureFixture[str]
SMALL = ("lenet5", "--batch", "32", "--chunk-size", "64KiB", "--dtype", "fp32")


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal, of a width that wraps nothing."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Commands may set the number of threads; other tests have their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def table(out: str) -> list[str]:
    """The lines that hold anything, their words one blank apart."""
    return [" ".join(line.split()) for line in out.splitlines() if line.strip()]


# Exit codes


def test_help_and_version_are_done(capsys: Captured) -> None:
    assert run(capsys, "--version")[:2] == (0, "tvdnn 0.1.0\n")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(
        re.search(rf"\b{name}\b", out) for name in ("bench", "plan", "trace", "train", "doctor")
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "No such command 'fly'"),
        (["plan"], "Missing argument"),
        (["plan", "lenet5", "--batch", "0"], "--batch"),
        (["plan", "lenet5", "--batch", "many"], "--batch"),
        (["plan", "lenet6"], "there is no network named 'lenet6'"),
        (["plan", "lenet5", "--dtype", "fp8"], "dtype 'fp8' is not known"),
        (["plan", "lenet5", "--policy", "vdnn-some"], "policy 'vdnn-some' is not known"),
        (["plan", "lenet5", "--budget", "lots"], "'lots' is not a number of bytes"),
        (["plan", "lenet5", "--hardware", "abacus"], "no hardware profile 'abacus'"),
        (["plan", "lenet5", "--json", "/absent/folder/rows.json"], "there is no folder"),
        (["bench", "lenet5", "--policy", "keep,vdnn-some"], "policy 'vdnn-some' is not known"),
        (["bench", "lenet5", "--budget", "none,few"], "'few' is not a number of bytes"),
        (["bench", "lenet5", "--steps", "0"], "--steps"),
        (["train", "lenet5", "--resume"], "--resume needs --checkpoint"),
        (["train", "lenet5", "--data", "absent"], "data 'absent' is neither"),
        (["train", "lenet5", "--batch", "5000"], "fewer than a batch"),
        (["train", "lenet5", "--checkpoint", "/absent/folder/a.pt"], "there is no folder"),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(
    capsys: Captured, arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err


# plan


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


# bench


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
    monkeypatch.setattr(digits, "STEPS", 4)
    path = tmp_path / "rows.json"
    code, out, err = run(capsys, "bench", "--json", path)
    lines = table(out)
    assert code == 0
    assert [line for line in lines if "vgg16" in line or "lenet5" in line] == [
        "lenet5(64) 32x32 fp32, measured on CPU (x86_64)",
        "vgg16(256) 224x224 bf16, simulated on H200",
    ]
    policies = [policy for policy, _ in bench.HEADLINE_CASES]
    assert [line.split()[0] for line in lines if line.split()[0] in policies] == [
        "keep",
        *policies,
    ]
    assert sum(line.endswith("as keep") for line in lines) == 2
    assert "There is no GPU here." in err
    assert "weights the same as those of keep, bit for bit" in err
    assert re.search(r"accuracy on 359 digits not trained on: \d+\.\d%", err)
    rows = [row for row in json.loads(path.read_text()) if row["net"] == "vgg16"]
    assert all(row["simulated"] and row["hardware"] == "H200" for row in rows)
    assert_offloads_what_vdnn_does(rows)


def test_without_scikit_learn_the_main_job_says_so(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "STEPS", 2)
    monkeypatch.setattr(digits, "has_digits", lambda: False)
    rows = digits.train_digits(messages(), "torch")
    assert "scikit-learn is not installed" in capsys.readouterr().err
    assert [row.equal for row in rows] == [True, True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the main job has these rows")
def test_the_headline_offloads_what_vdnn_does(capsys: Captured) -> None:
    assert_offloads_what_vdnn_does(bench_rows(capsys, "--hardware", "H200"))


def assert_offloads_what_vdnn_does(rows: list[dict[str, Any]]) -> None:
    assert [row["budget_bytes"] for row in rows] == [None, 6 * GIB, 6 * GIB, 5 * GIB // 2]
    assert all(row["chunk_size"] == DEFAULT_CHUNK_SIZE for row in rows)
    assert next(r for r in rows if r["policy"] == "vdnn-all")["offloaded_bytes"] == 7_784_103_936
    assert all(row["planned_peak_bytes"] <= row["budget_bytes"] for row in rows[1:])


# train


def dataset(path: Path, *, count: int = 90) -> Path:
    """Images of three classes that differ in brightness."""
    labels = np.arange(count) % 3
    noise = np.random.default_rng(5).normal(0, 0.1, (count, 32, 32))
    np.savez(path, x=(labels[:, None, None] - 1 + noise).astype(np.float32), y=labels)
    return path


def train(capsys: Captured, data: Path, *arguments: str | Path) -> tuple[int, list[str], str]:
    options = ("--batch", "16", "--lr", "0.02", "--chunk-size", "64KiB", "--dtype", "fp32")
    code, out, err = run(capsys, "train", "lenet5", "--data", data, *options, *arguments)
    return code, out.splitlines(), err


def weights(path: Path) -> dict[str, torch.Tensor]:
    state = torch.load(path, weights_only=True)
    return {**state["trainer"]["model"], "epoch": torch.tensor(state["epoch"])}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_training_learns_and_reports_each_epoch(capsys: Captured, tmp_path: Path) -> None:
    code, lines, err = train(capsys, dataset(tmp_path / "a.npz"), "--epochs", "8")
    assert code == 0
    assert [line.split(":")[0] for line in lines] == [f"epoch {n}" for n in range(1, 9)]
    losses = [float(re.findall(r"loss (\S+),", line)[0]) for line in lines]
    assert losses[-1] < 0.5 * losses[0]
    assert "test accuracy 100.00%" in lines[-1]
    assert "epoch 8/8: running" in err


def test_a_resumed_run_ends_with_the_bits_of_one_that_never_stopped(
    capsys: Captured, tmp_path: Path
) -> None:
    data = dataset(tmp_path / "a.npz")
    whole, halved = tmp_path / "whole.pt", tmp_path / "halved.pt"
    train(capsys, data, "--epochs", "3", "--policy", "keep", "--checkpoint", whole)
    moved = ("--policy", "vdnn-all", "--checkpoint", halved, "--resume")
    first = train(capsys, data, "--epochs", "1", *moved)
    second = train(capsys, data, "--epochs", "3", *moved)
    assert "no checkpoint" in first[2]
    assert "going on after epoch 1" in second[2]
    assert [line.split(":")[0] for line in second[1]] == ["epoch 2", "epoch 3"]
    assert equal(weights(whole), weights(halved))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "halved.pt", "whole.pt"]


def test_a_checkpoint_of_another_network_is_refused(capsys: Captured, tmp_path: Path) -> None:
    data, path = dataset(tmp_path / "a.npz"), tmp_path / "a.pt"
    torch.save({"net": "alexnet", "classes": 3, "epoch": 1, "trainer": {}}, path)
    code, _, err = train(capsys, data, "--checkpoint", path, "--resume")
    assert code == 2
    assert "is of alexnet with 3 classes, not of lenet5 with 3" in err


def test_training_that_does_not_fit_is_1(capsys: Captured, tmp_path: Path) -> None:
    code, lines, err = train(capsys, dataset(tmp_path / "a.npz"), "--budget", "100KiB")
    assert (code, lines) == (1, [])
    assert "error: budget 100.00 KiB is below the floor" in err


# doctor


def test_doctor_names_what_it_finds(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    code, out, _ = run(capsys, "doctor", "--json", path)
    found = {finding["name"]: finding for finding in json.loads(path.read_text())}
    assert code == int(any(finding["fatal"] for finding in found.values()))
    assert found["torch"]["value"] == torch.__version__
    names = ("GPU", "triton", "host memory free", "lockable memory (ulimit -l)", "C compiler")
    assert all(name in found and name in out for name in names)
    assert (found["GPU"]["value"] == "none") is not torch.cuda.is_available()


def test_doctor_fails_where_torch_is_too_old(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "software", lambda: {"torch": "2.4.1+cpu", "triton": "3.10.0"})
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert any("install torch>=2.11" in line for line in table(out))
    assert "install triton" not in out


def test_every_model_can_be_planned(capsys: Captured) -> None:
    names = ("lenet5", "alexnet", "overfeat", "nin", "vgg11-bn", "ResNet18", "densenet121")
    for name in names:
        code, out, _ = run(capsys, "plan", name, "--batch", "2", "--json", "-")
        assert (code, json.loads(out)["row"]["net"]) == (0, name)
