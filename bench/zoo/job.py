"""The process of one network of the zoo: a row for each way to train it, as `bench.zoo` asks.

    python -m bench.zoo.job '{"net": "resnet50", "ways": ["eager", "compile"], "dtype": "bf16"}'

Each row is printed as a line of JSON. The process that starts this one answers its requests to be
alone on the GPU. The first failure ends it.
"""

import json
import sys
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from bench.side_by_side import BEGIN
from bench.turn import ParentLock, Turn
from bench.zoo import by_torch, by_tvdnn
from bench.zoo.clock import Row
from bench.zoo.library import make
from bench.zoo.networks import ZooNetwork, network_named
from bench.zoo.rows import EAGER, HALF, TORCHS_WAYS

SEED: Final = 1
MOST_CHARACTERS: Final = 600  # of an error
DEVICE: Final = torch.device("cuda")


def main() -> None:
    try:
        _measure(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001
        sys.exit(told(error))


def told(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MOST_CHARACTERS]


def _measure(asked: dict[str, Any]) -> None:
    """Print a row for each way."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    network, turn = network_named(asked["net"]), Turn(ParentLock())
    if asked["ways"][0] in by_torch.MODES:  # eager's steps ran in another process
        _search_algorithms(network, asked["dtype"], turn)
    for way in asked["ways"]:
        print(f"{BEGIN}{way}", flush=True)
        row = row_of(network, way, asked["dtype"], turn, asked.get("half_bytes"))
        print(json.dumps(row), flush=True)
        turn.give()


def _search_algorithms(network: ZooNetwork, dtype: str, turn: Turn) -> None:
    """Have cuDNN choose its algorithms alone on the GPU, by a step of eager."""
    turn.take()
    row_of(network, EAGER, dtype, turn)
    turn.give()


def row_of(network: ZooNetwork, way: str, dtype: str, turn: Turn, half: int | None = None) -> Row:
    """The row of a way, on a GPU. `half` are the bytes of half of torch.compile's memory."""
    x, y = data(network, DEVICE)
    build, weights = partial(built, network, DEVICE), network.loss_weights
    if way in TORCHS_WAYS:
        x = x.contiguous(memory_format=torch.channels_last)
        return by_torch.measured(build, x, y, way, dtype, turn, weights=weights)
    budget = half if way == HALF else None
    return by_tvdnn.measured(build, x, y, way, dtype, turn, weights=weights, budget=budget)


def data(network: ZooNetwork, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images and targets."""
    torch.manual_seed(SEED)
    with device:
        x = torch.randn(network.batch, 3, network.side, network.side)
        return x, torch.randint(network.classes, network.target_shape)


def built(network: ZooNetwork, device: torch.device) -> nn.Module:
    """The network with the same weights at every call."""
    torch.manual_seed(SEED)
    with device:
        return make(network)


if __name__ == "__main__":
    main()
