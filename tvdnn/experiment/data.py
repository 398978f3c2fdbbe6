"""Data: labelled images from scikit-learn's digits, a folder, an .npz file or random numbers."""

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..errors import InputError

TEST_SHARE = 0.2
DECODERS = 8  # threads that decode the images of a folder
PART = 32  # images of a batch of accuracy


class Split(Protocol):
    """Labelled images that can be taken by index."""

    def __len__(self) -> int: ...
    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images [N, C, H, W] float32 and labels [N] int64 at these indices."""
        ...


@dataclass(frozen=True, slots=True)
class Dataset:
    """Images to train on and images to test with."""

    train: Split
    test: Split
    num_classes: int


@dataclass(frozen=True, slots=True)
class ArraySplit:
    """Images [N, C, H, W] and labels [N] in memory."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]


@dataclass(frozen=True, slots=True)
class FolderSplit:
    """Images of a torchvision ImageFolder, decoded when they are taken."""

    folder: Any
    members: Tensor

    def __len__(self) -> int:
        return len(self.members)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        with ThreadPoolExecutor(DECODERS) as pool:
            pairs = list(pool.map(self.folder.__getitem__, self.members[indices].tolist()))
        return torch.stack([x for x, _ in pairs]), torch.tensor([label for _, label in pairs])


def load(source: str, *, shape: tuple[int, int, int], seed: int = 0) -> Dataset:
    """The data named `source`: "digits", a folder with a folder for each class, or an .npz file.

    Images are resized to `shape` [C, H, W]. Where the source has no test part (a `test` or `val`
    folder; arrays `x_test` and `y_test`), a fifth of the images is held out, chosen by `seed`.
    """
    if source == "digits":
        return digits(shape, seed=seed)
    path = Path(source)
    if path.is_dir():
        return folder(path, shape, seed=seed)
    if path.suffix == ".npz" and path.is_file():
        return arrays(path, shape, seed=seed)
    raise InputError(f"data {source!r} is neither digits, nor a folder, nor an .npz file")


def has_digits() -> bool:
    """Whether scikit-learn, which contains the digits, is installed."""
    return importlib.util.find_spec("sklearn") is not None


def digits(shape: tuple[int, int, int], *, seed: int = 0) -> Dataset:
    """The 1,797 scanned 8x8 digits of scikit-learn, enlarged, with values in [-1, 1]."""
    if not has_digits():
        raise InputError("digits need scikit-learn: pip install 'tvdnn[demo]'")
    from sklearn.datasets import load_digits  # noqa: PLC0415 (an extra)

    found = load_digits()
    images = torch.from_numpy(found.images).float().unsqueeze(1) / 8.0 - 1.0
    labels = torch.from_numpy(found.target).long()
    return _divided(_resized(images, shape), labels, seed)


def arrays(path: Path, shape: tuple[int, int, int], *, seed: int = 0) -> Dataset:
    """Arrays x [N, H, W] or [N, C, H, W] and y [N]. uint8 images are scaled to [-1, 1]."""
    with np.load(path) as file:
        missing = {"x", "y"} - set(file.files)
        if missing:
            raise InputError(f"{path} has no array {min(missing)}; it must have x and y")
        train = _array_split(path, file["x"], file["y"], shape)
        if "x_test" not in file.files or "y_test" not in file.files:
            return _divided(train.images, train.labels, seed)
        test = _array_split(path, file["x_test"], file["y_test"], shape)
    return Dataset(train, test, _num_classes(torch.cat((train.labels, test.labels))))


def folder(path: Path, shape: tuple[int, int, int], *, seed: int = 0) -> Dataset:
    """Images of one folder a class, under `train` and `test` (or `val`) where these exist."""
    if importlib.util.find_spec("torchvision") is None:
        raise InputError(f"the image folder {path} needs torchvision: pip install torchvision")
    train = _image_folder(path / "train" if (path / "train").is_dir() else path, shape)
    tests = [path / name for name in ("test", "val") if (path / name).is_dir()]
    num_classes = len(train.classes)
    if tests and (path / "train").is_dir():
        test = _image_folder(tests[0], shape)
        return Dataset(_whole(train), _whole(test), num_classes)
    train_ids, test_ids = _divide(len(train), seed)
    return Dataset(FolderSplit(train, train_ids), FolderSplit(train, test_ids), num_classes)


def random_batch(
    batch: int,
    shape: tuple[int, int, int],
    num_classes: int,
    device: torch.device,
    *,
    sides: tuple[int, ...] = (),
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Normal images [batch, C, H, W] and uniform labels. The same for the same seed.

    Labels are [batch], or [batch, *sides] for a class a pixel.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, *shape, generator=generator)
    y = torch.randint(0, num_classes, (batch, *sides), generator=generator)
    return x.to(device), y.to(device)


def batches(split: Split, batch: int, *, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Full batches in an order set by `seed`. The remainder is dropped."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    for start in range(0, len(split) - batch + 1, batch):
        yield split.take(order[start : start + batch])


def accuracy(net: Callable[[Tensor], Tensor], split: Split, device: torch.device) -> float:
    """The share of images whose label has the largest logit. PART images are tested at a time."""
    right = 0
    with torch.no_grad():
        for indices in torch.arange(len(split)).split(PART):
            x, y = split.take(indices)
            right += int((net(x.to(device)).argmax(1).cpu() == y).sum())
    return right / len(split)


def _whole(images: Any) -> FolderSplit:
    return FolderSplit(images, torch.arange(len(images)))


def _array_split(path: Path, x: Any, y: Any, shape: tuple[int, int, int]) -> ArraySplit:
    if len(x) != len(y) or x.ndim not in (3, 4):
        raise InputError(
            f"{path} has x {list(x.shape)} and y {list(y.shape)}; x must be [N, H, W] or "
            "[N, C, H, W] and y [N]"
        )
    images = torch.from_numpy(x)
    images = images.unsqueeze(1) if x.ndim == 3 else images
    scaled = images.float() / 127.5 - 1.0 if images.dtype == torch.uint8 else images.float()
    return ArraySplit(_resized(scaled, shape), torch.from_numpy(y).long())


def _divided(images: Tensor, labels: Tensor, seed: int) -> Dataset:
    train, test = _divide(len(labels), seed)
    return Dataset(
        ArraySplit(images[train], labels[train]),
        ArraySplit(images[test], labels[test]),
        _num_classes(labels),
    )


def _divide(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the training part and of the test part."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = max(1, round(count * TEST_SHARE))
    return order[held:], order[:held]


def _num_classes(labels: Tensor) -> int:
    return int(labels.max()) + 1


def _resized(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images [N, C, H, W] resized to `shape`: bilinear. One channel is repeated as needed."""
    channels, height, width = shape
    if images.shape[1] not in (1, channels):
        raise InputError(f"images have {images.shape[1]} channels, the network takes {channels}")
    if tuple(images.shape[2:]) != (height, width):
        images = functional.interpolate(images, (height, width), mode="bilinear")
    return images.expand(-1, channels, -1, -1).contiguous()


def _image_folder(path: Path, shape: tuple[int, int, int]) -> Any:
    import torchvision  # noqa: PLC0415 (an extra)

    channels, height, width = shape
    steps = torchvision.transforms
    transform = steps.Compose(
        [
            steps.Grayscale(channels) if channels == 1 else steps.Lambda(_to_rgb),
            steps.Resize(max(height, width)),
            steps.CenterCrop((height, width)),
            steps.ToTensor(),
            steps.Normalize((0.5,) * channels, (0.5,) * channels),
        ]
    )
    return torchvision.datasets.ImageFolder(str(path), transform)


def _to_rgb(image: Any) -> Any:
    return image.convert("RGB")
