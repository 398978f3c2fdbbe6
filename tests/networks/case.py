"""A network to test the engine with: how it is made, its data, and how it is cut and moved."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Options = Mapping[str, Any]
Batch = tuple[Tensor, Tensor]
MOVED: Options = {"policy": "vdnn-all:m"}
STORED: Options = {"policy": "gist-lossless"}
LEAST: Options = {"policy": "auto", "budget": "min"}


class Run(NamedTuple):
    """Steps of training that every policy must take alike."""

    dtype: str
    kernels: str = "torch"
    samples: int = 0  # of a batch; 0 for those of the case
    steps: int = 2


EXACT, HALF, TENSOR = Run("fp32"), Run("bf16"), Run("tf32")


@dataclass(frozen=True, slots=True)
class NetworkCase:
    """A row of the table of test networks. `make` draws weights from torch's generator."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a sample
    batch: int = 5  # samples
    classes: int = 4
    chunk_size: int = 600  # bytes
    runs: tuple[Run, ...] = ()  # none: only gradients are compared
    policies: tuple[Options, ...] = (MOVED, STORED)  # beside keep
    gradients: bool = True  # False where torch draws other random numbers
    atol: float = 1e-6  # of gradients in float32
    pixels: bool = False  # a class for each pixel

    def network(self) -> nn.Module:
        torch.manual_seed(3)
        return self.make()

    def batches(self, count: int, seed: int, samples: int = 0) -> list[Batch]:
        """Random inputs [N, ...] and classes [N], or [N, H, W] with a class for each pixel."""
        generator = torch.Generator().manual_seed(seed)
        batch = samples or self.batch
        sides = self.shape[1:] if self.pixels else ()
        return [
            (
                torch.randn((batch, *self.shape), generator=generator),
                torch.randint(self.classes, (batch, *sides), generator=generator),
            )
            for _ in range(count)
        ]
