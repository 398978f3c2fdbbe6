"""The processes that torchrun starts for one command, of which the first prints."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
from torch import distributed

from ..engine.process_group import ALONE, gathered


@dataclass(frozen=True, slots=True)
class Together:
    """The processes of a command, and this one's number among them."""

    rank: int = 0
    size: int = 1
    grouped: bool = False

    @property
    def group(self) -> Any:
        """Their process group, as Trainer takes it. Whoever keeps it keeps its threads."""
        return distributed.group.WORLD if self.grouped else ALONE

    def all_of(self, mine: float) -> list[float]:
        """What every process gives, in their order."""
        return gathered(mine, self.group) if self.grouped else [mine]


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

    Sums go by NCCL between GPUs, by gloo on CPUs or where processes share a GPU. The group and its
    threads end with the context, if nothing else keeps the group.
    """
    if not is_launched():
        yield Together()
        return
    local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if count:
        torch.cuda.set_device(local % count)
    own_gpus = int(os.environ["LOCAL_WORLD_SIZE"]) <= count
    # Torch's own steps import this, and defaults of its functions are the group of that time. A
    # thread of gloo that still runs when Python ends can abort the process (torch's issue 190489).
    import_module("torch.distributed.nn.functional")
    distributed.init_process_group("nccl" if own_gpus else "gloo")
    yield Together(distributed.get_rank(), distributed.get_world_size(), grouped=True)
    gc.collect()  # trainers that are no longer used keep the group
    distributed.destroy_process_group()  # after an error it could wait for sums of the others
