"""The processes that torchrun starts for one command, of which the first prints."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import distributed

from ..engine.process_group import ALONE, gathered


@dataclass(frozen=True, slots=True)
class Together:
    """The group of a command's processes, and this one's number among them."""

    group: Any = ALONE  # as Trainer takes it
    rank: int = 0
    size: int = 1

    def all_of(self, mine: float) -> list[float]:
        """What every process gives, in their order."""
        return [mine] if self.group == ALONE else gathered(mine, self.group)


ONE: Final = Together()


def is_launched() -> bool:
    """Whether torchrun started this process."""
    return distributed.is_available() and distributed.is_torchelastic_launched()


def is_first() -> bool:
    """Whether this process prints: the first of torchrun's, or one that it did not start."""
    return not is_launched() or os.environ.get("RANK") == "0"


@contextmanager
def together() -> Iterator[Together]:
    """This process among those of torchrun, each with a GPU if there are enough; or one alone.

    Sums go by NCCL between GPUs, by gloo on CPUs or where processes share a GPU.
    """
    if not is_launched():
        yield Together()
        return
    local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if count:
        torch.cuda.set_device(local % count)
    own_gpus = int(os.environ["LOCAL_WORLD_SIZE"]) <= count
    distributed.init_process_group("nccl" if own_gpus else "gloo")
    group = distributed.group.WORLD
    yield Together(group, distributed.get_rank(), distributed.get_world_size())
    distributed.destroy_process_group()  # after an error it could wait for sums of the others
