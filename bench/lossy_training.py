"""Training with rounded maps beside exact training: scanned digits, and images of CIFAR's size.

    python -m bench.lossy_training -o bench/results/plans/lossy_training.json
    python -m bench.lossy_training --tasks digits --seeds 0 --epochs 2 -o rows.json
    python -m bench.lossy_training --digits digits.npz -o rows.json

A row is one task, type, codec and seed: the loss of the last epoch and the share of the test images
that are classified right. Seeds draw weights, order and test images, the same for all codecs.
LeNet-5 learns scikit-learn's digits, which `--digits` may read from an .npz file of x and y. The
other task is synthetic: ten classes of smooth random patterns, 32 x 32 x 3, each image one pattern
shifted, scaled and covered by noise. A network of six convolutions, three of them normalized,
learns it. Codecs round all maps that gist-lossy does.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from bench.command_line import parser_of
from bench.environment import software
from tvdnn import models
from tvdnn.engine import Trainer
from tvdnn.experiment import data
from tvdnn.experiment.data import ArraySplit, Dataset
from tvdnn.graph import FP16
from tvdnn.optim import SGD
from tvdnn.planner.policies.gist import LOSSY, LOSSY_FORMS

EXACT: Final = "exact"
SEEDS: Final = (0, 1, 2, 3, 4)
TASKS: Final = ("digits", "patterns")
BATCH: Final = 64
EPOCHS: Final = {"digits": 8, "patterns": 6}
RATES: Final = {"digits": 0.03, "patterns": 0.05}
CLASSES, SIDE, IMAGES = 10, 32, 4096
NOISE: Final = 1.5  # its deviation; a pattern's is 0.5 to 1.5
SHIFT: Final = 6  # pixels, at most, each way
COARSE: Final = 8  # random values a side, from which a pattern is interpolated
Row = dict[str, Any]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "tf32"])
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--epochs", type=int, help="of each task; its own if not given")
    parser.add_argument("--images", type=int, default=IMAGES, help="of the synthetic task")
    parser.add_argument("--digits", default="digits", help="an .npz file of x and y")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    rows: list[Row] = []
    for task in options.tasks:
        epochs = options.epochs or EPOCHS[task]
        for seed in options.seeds:
            if task == "digits":
                dataset = data.load(options.digits, shape=(1, SIDE, SIDE), seed=seed)
            else:
                dataset = patterns(options.images, seed)
            for dtype in options.dtypes:
                for row in rows_of(task, dataset, dtype, seed, epochs):
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    rows.append(row)
                    document = {"title": "Training with rounded maps", "rows": rows}
                    document["summary"] = summary(rows)
                    document["environment"] = {**software(), "on": place}
                    options.output.write_text(json.dumps(document, indent=1) + "\n")


def rows_of(task: str, dataset: Dataset, dtype: str, seed: int, epochs: int) -> Iterator[Row]:
    """The rows of a task with one seed: exact training, then each codec that rounds anything."""
    first: float | None = None
    for codec in (EXACT, *map(str, LOSSY_FORMS)):
        if codec == str(FP16) and dtype == "bf16":
            continue
        row = {"task": task, "dtype": dtype, "codec": codec, "seed": seed, "epochs": epochs}
        row |= trained(task, dataset, dtype, codec, seed, epochs)
        first = row["first_loss"] if first is None else first
        yield row | {"first_loss_is_exact": row["first_loss"] == first}


def trained(task: str, dataset: Dataset, dtype: str, codec: str, seed: int, epochs: int) -> Row:
    """What training a new network came to."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    net = (models.lenet5() if task == "digits" else patterns_net()).to(device)
    policy = "keep" if codec == EXACT else f"{LOSSY}:{codec}"
    example = dataset.train.take(torch.arange(BATCH))[0]
    optimizer = SGD(lr=RATES[task], momentum=0.9, weight_decay=5e-4)
    trainer = Trainer(net, example, optimizer=optimizer, policy=policy, dtype=dtype)
    per_epoch = len(dataset.train) // BATCH
    rates = torch.optim.lr_scheduler.OneCycleLR(trainer.optimizer, RATES[task], epochs * per_epoch)
    losses: list[torch.Tensor] = []
    for epoch in range(epochs):
        for x, y in data.batches(dataset.train, BATCH, seed=seed * 1000 + epoch):
            losses.append(trainer.step(x, y).clone())
            rates.step()
    rounded = len(trainer.plan.rounded)
    trainer.close()
    net.eval()
    last = torch.stack(losses[-per_epoch:]).mean().item()
    right = data.accuracy(net, dataset.test, device)
    found = {"rounded_maps": rounded, "first_loss": losses[0].item(), "last_loss": last}
    return {**found, "accuracy": right}


def summary(rows: list[Row]) -> list[Row]:
    """By task, type and codec the mean of all seeds, and the deviation between them."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["task"], row["dtype"], row["codec"]), []).append(row)
    return [
        {
            **dict(zip(("task", "dtype", "codec"), key, strict=True)),
            "seeds": len(each),
            "accuracy": mean(row["accuracy"] for row in each),
            "accuracy_deviation": _deviation([row["accuracy"] for row in each]),
            "last_loss": mean(row["last_loss"] for row in each),
            "last_loss_deviation": _deviation([row["last_loss"] for row in each]),
        }
        for key, each in found.items()
    ]


def _deviation(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def patterns(count: int, seed: int) -> Dataset:
    """Images [count, 3, 32, 32] of ten patterns; a fifth more to test."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(CLASSES, 3, COARSE, COARSE, generator=generator)
    smooth = functional.interpolate(coarse, size=SIDE, mode="bicubic")
    smooth /= smooth.std((1, 2, 3), keepdim=True)
    total = count + count // 5
    labels = torch.randint(CLASSES, (total,), generator=generator)
    shifts = torch.randint(-SHIFT, SHIFT + 1, (total, 2), generator=generator)
    scales = torch.rand(total, 1, 1, 1, generator=generator) + 0.5
    moved = [
        smooth[label].roll(tuple(shift), (1, 2))
        for label, shift in zip(labels.tolist(), shifts.tolist(), strict=True)
    ]
    noise = NOISE * torch.randn(total, 3, SIDE, SIDE, generator=generator)
    images = scales * torch.stack(moved) + noise
    parts = ArraySplit(images[:count], labels[:count]), ArraySplit(images[count:], labels[count:])
    return Dataset(*parts, CLASSES)


def patterns_net() -> nn.Sequential:
    """Six convolutions, every other one normalized, in three stages."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, CLASSES))


if __name__ == "__main__":
    main()
