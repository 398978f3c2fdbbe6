"""The data: shapes, ranges, splits that do not overlap, seeded orders, and refusals."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tvdnn.errors import InputError
from tvdnn.experiment import data

SHAPE = (1, 32, 32)


def save(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def numbered(count: int, *, channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, channels, 32, 32] whose every value is the image's number, and labels."""
    x = np.broadcast_to(
        np.arange(count, dtype=np.float32).reshape(-1, 1, 1, 1), (count, channels, 32, 32)
    )
    return x, np.arange(count) % 5


def test_digits_are_all_there_and_scaled() -> None:
    found = data.load("digits", shape=SHAPE)
    assert (len(found.train), len(found.test), found.num_classes) == (1438, 359, 10)
    x, y = found.train.take(torch.arange(1438))
    assert (x.shape, x.dtype, y.dtype) == ((1438, 1, 32, 32), torch.float32, torch.int64)
    assert (float(x.min()), float(x.max())) == (-1.0, 1.0)
    assert set(y.tolist()) == set(range(10))


def test_digits_take_the_channels_of_the_network() -> None:
    x, _ = data.load("digits", shape=(3, 16, 16)).test.take(torch.arange(4))
    assert x.shape == (4, 3, 16, 16)
    assert torch.equal(x[:, 0], x[:, 2])


def test_digits_without_scikit_learn_name_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "has_digits", lambda: False)
    with pytest.raises(InputError, match=r"tvdnn\[demo\]"):
        data.load("digits", shape=SHAPE)


def test_a_split_holds_every_image_once(tmp_path: Path) -> None:
    x, y = numbered(25)
    found = data.load(save(tmp_path / "a.npz", x=x, y=y), shape=SHAPE)
    parts = [
        split.take(torch.arange(len(split)))[0][:, 0, 0, 0] for split in (found.train, found.test)
    ]
    assert [len(part) for part in parts] == [20, 5]
    assert sorted(torch.cat(parts).tolist()) == list(range(25))


def test_the_seed_decides_the_split(tmp_path: Path) -> None:
    x, y = numbered(25)
    path = save(tmp_path / "a.npz", x=x, y=y)
    first, again, other = (
        data.load(path, shape=SHAPE, seed=seed).test.take(torch.arange(5))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_test_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    x, y = numbered(6)
    path = save(tmp_path / "a.npz", x=x[:4], y=y[:4], x_test=x[4:], y_test=y[4:])
    found = data.load(path, shape=SHAPE)
    images, labels = found.test.take(torch.arange(2))
    assert (images[:, 0, 0, 0].tolist(), labels.tolist()) == ([4.0, 5.0], [4, 0])
    assert (len(found.train), found.num_classes) == (4, 5)


def test_bytes_are_scaled_and_gray_images_repeated(tmp_path: Path) -> None:
    x = np.array([[[0, 255], [255, 0]]] * 4, np.uint8)
    path = save(tmp_path / "a.npz", x=x, y=np.zeros(4, np.int32))
    images, labels = data.load(path, shape=(3, 2, 2)).train.take(torch.arange(3))
    assert images[0].tolist() == [[[-1.0, 1.0], [1.0, -1.0]]] * 3
    assert labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((3, 8, 8))}, "no array y"),
        ({"y": np.zeros(3)}, "no array x"),
        ({"x": np.zeros((3, 8, 8)), "y": np.zeros(4)}, r"x \[3, 8, 8\] and y \[4\]"),
        ({"x": np.zeros((3, 8)), "y": np.zeros(3)}, r"x must be \[N, H, W\]"),
        ({"x": np.zeros((3, 2, 8, 8)), "y": np.zeros(3)}, "2 channels, the network takes 1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        data.load(save(tmp_path / "a.npz", **arrays), shape=SHAPE)


def test_unknown_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither digits, nor a folder"):
        data.load(str(tmp_path / "absent.npz"), shape=SHAPE)


def test_a_folder_without_torchvision_names_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install torchvision"):
        data.load(str(tmp_path), shape=SHAPE)


def test_batches_are_full_shuffled_and_repeatable() -> None:
    split = data.ArraySplit(torch.arange(10.0).reshape(10, 1, 1, 1), torch.arange(10))
    first = [y.tolist() for _, y in data.batches(split, 4, seed=3)]
    assert first == [y.tolist() for _, y in data.batches(split, 4, seed=3)]
    assert first != [y.tolist() for _, y in data.batches(split, 4, seed=4)]
    assert [len(part) for part in first] == [4, 4]
    assert len({label for part in first for label in part}) == 8
    for x, y in data.batches(split, 4, seed=3):
        assert torch.equal(x.flatten().long(), y)


def test_random_batches_repeat_for_a_seed() -> None:
    device = torch.device("cpu")
    x, y = data.random_batch(64, SHAPE, 7, device, seed=5)
    again, labels = data.random_batch(64, SHAPE, 7, device, seed=5)
    assert torch.equal(x, again)
    assert torch.equal(y, labels)
    assert (x.shape, y.dtype) == ((64, 1, 32, 32), torch.int64)
    assert set(y.tolist()) == set(range(7))
    assert not torch.equal(x, data.random_batch(64, SHAPE, 7, device, seed=6)[0])


def test_accuracy_counts_the_last_short_part() -> None:
    labels = torch.arange(70) % 2
    split = data.ArraySplit(labels.float().reshape(70, 1, 1, 1), labels)

    def always_one(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.0, 1.0]]).expand(len(x), 2)

    def right(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((1 - x, x), 1).flatten(1)

    assert data.accuracy(always_one, split, torch.device("cpu")) == 0.5
    assert data.accuracy(right, split, torch.device("cpu")) == 1.0


def test_random_labels_are_of_images_or_of_pixels() -> None:
    cpu = torch.device("cpu")
    for sides in ((), (4, 5)):
        x, y = data.random_batch(3, (2, 4, 5), 7, cpu, sides=sides)
        assert (x.shape, y.shape) == ((3, 2, 4, 5), (3, *sides))
        assert y.dtype == torch.int64
        assert 0 <= y.min() <= y.max() < 7
        again = data.random_batch(3, (2, 4, 5), 7, cpu, sides=sides)
        assert torch.equal(x, again[0])
        assert torch.equal(y, again[1])
