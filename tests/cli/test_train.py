"""`tvdnn train`: its reports, and training resumed to the bit."""

import re
from pathlib import Path

import numpy as np
import torch

from tests.support.commands import Captured, run


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
