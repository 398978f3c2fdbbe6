"""Lossy codecs within limits, and training with rounded maps: what rows say."""

import pytest
import torch

from bench import lossy_limits, lossy_training
from bench.lossy_training import patterns, rows_of, summary


def test_a_row_says_which_limits_a_codec_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """LeNet-5's gradients have errors about those of rounding."""
    monkeypatch.setitem(lossy_limits.NETS, "lenet5", (4, None, 16))
    sizes = ("lenet5", "fp32", None, None, 1 / 2)
    rows = {
        row["codec"]: row
        for row in lossy_limits.rows_of(*sizes, limits=[0.001, 0.01, 1.0], search=True)
    }
    assert list(rows) == ["fp16", "fp10", "fp8"]
    errors = [row["largest_error"] for row in rows.values()]
    assert errors == sorted(errors)
    for row in rows.values():
        assert (row["net"], row["batch"], row["side"], row["width"]) == ("lenet5", 4, 32, 1 / 2)
        assert row["rounded_maps"] > 0
        passed = [float(limit) for limit, passes in row["passes"].items() if passes]
        assert passed == [each for each in (0.001, 0.01, 1.0) if row["largest_error"] <= each]
        for limit, passes in row["passes"].items():
            assert (row["maps_within"][limit] == row["rounded_maps"]) is passes
    assert rows["fp8"]["maps_within"]["0.01"] < rows["fp8"]["rounded_maps"]


def test_bf16_has_no_fp16() -> None:
    rows = lossy_limits.rows_of("vgg16", "bf16", 1, 32, 1 / 8, limits=[0.03], search=False)
    assert [row["codec"] for row in rows] == ["fp10", "fp8"]


@pytest.mark.parametrize("task", lossy_training.TASKS)
def test_training_starts_from_the_same_loss_with_all_codecs(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = patterns(16, seed=0) if task == "patterns" else small_digits()
    monkeypatch.setattr(lossy_training, "BATCH", 8)
    rows = list(rows_of(task, dataset, "fp32", seed=0, epochs=1))
    assert [row["codec"] for row in rows] == ["exact", "fp16", "fp10", "fp8"]
    assert all(row["first_loss_is_exact"] for row in rows)
    assert [bool(row["rounded_maps"]) for row in rows] == [False, True, True, True]
    again = [{**row, "seed": 1, "accuracy": row["accuracy"] + 0.2} for row in rows]
    found = summary([*rows, *again])
    assert [each["codec"] for each in found] == [row["codec"] for row in rows]
    for each, row in zip(found, rows, strict=True):
        assert each["seeds"] == 2
        assert each["accuracy"] == pytest.approx(row["accuracy"] + 0.1)
        assert each["accuracy_deviation"] == pytest.approx(0.02**0.5)
        assert each["last_loss_deviation"] == 0


def small_digits() -> lossy_training.Dataset:
    dataset = lossy_training.data.load("digits", shape=(1, 32, 32))
    images = lossy_training.ArraySplit(*dataset.train.take(torch.arange(16)))
    return lossy_training.Dataset(images, images, dataset.num_classes)


def test_patterns_are_the_same_for_a_seed() -> None:
    one, same, other = patterns(64, 3), patterns(64, 3), patterns(64, 4)
    assert one.train.images.shape == (64, 3, 32, 32)
    assert len(one.test) == 12
    assert torch.equal(one.train.images, same.train.images)
    assert not torch.equal(one.train.images, other.train.images)
