"""The processes that train one network together, each on its part of a batch."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, distributed, nn

from ..errors import EngineError, InputError, TvdnnError
from ..ops import Settings
from ..ops.builder import BUCKET_NBYTES, Ranks
from ..units import parse_bytes

Result = TypeVar("Result")
SUM_DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16"}


class TrainingGroup:
    """A process group of torch.distributed whose processes train together.

    Raises InputError where torch.distributed is not initialized, or this process is not of the
    group.
    """

    def __init__(self, group: "distributed.ProcessGroup", device: torch.device) -> None:
        if not distributed.is_available() or not distributed.is_initialized():
            raise InputError(
                "process_group is given, but torch.distributed is not initialized; call"
                " torch.distributed.init_process_group first"
            )
        self._group = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        backends = distributed.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
        self.sums_in_graphs = f"{device.type}:nccl" in backends.split(",")
        if self.rank < 0:
            raise InputError("this process is not of the process_group; leave it out of training")

    def sum(self, values: Tensor) -> None:
        """Sum a tensor over the processes, in its place and in the stream's order.

        Raises EngineError where another process has ended, or does not answer in time.
        """
        with self._told("sum"):
            distributed.all_reduce(values, group=self._group)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the tensors of the first."""
        source = distributed.get_global_rank(self._group, 0)
        with self._told("broadcast"), torch.no_grad():
            for each in tensors:
                distributed.broadcast(each.detach(), source, group=self._group)

    def from_first(self, make: Callable[[], Result]) -> Result:
        """What the first process makes. What it raises, all processes raise."""
        held: list[Any] = [None, None]
        if self.rank == 0:
            try:
                held[0] = make()
            except TvdnnError as error:
                held[1] = error
        source = distributed.get_global_rank(self._group, 0)
        with self._told("broadcast"):
            distributed.broadcast_object_list(held, source, group=self._group)
        if held[1] is not None:
            raise held[1]
        result: Result = held[0]
        return result

    def all_of(self, mine: Result) -> list[Result]:
        """What every process gives, in their order."""
        found: list[Any] = [None] * self.size
        with self._told("comparison"):
            distributed.all_gather_object(found, mine, group=self._group)
        return found

    def agree(self, what: dict[str, Any]) -> None:
        """Compare what all processes must have alike, by name.

        Raises InputError that tells the first difference from the first process.
        """
        found = self.all_of(what)
        for rank, each in enumerate(found):
            for name in dict.fromkeys((*found[0], *each)):
                first, other = found[0].get(name), each.get(name)
                if first != other:
                    raise InputError(
                        f"process {rank} of the group has {name} {other}, process 0 has {first};"
                        " all processes train the same network in the same way"
                    )

    def mean(self, values: Iterable[Tensor], samples: Tensor) -> None:
        """Replace tensors of float32 by their means over all samples, in their places.

        Each is the mean of this process's `samples`, float32 [1].
        """
        total = samples.clone()
        self.sum(total)
        for each in values:
            each.mul_(samples[0] / total[0])
            self.sum(each)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise EngineError(
                f"process {self.rank} of {self.size}: a {what} over all processes failed. One has"
                " ended, does other steps, or did not answer in time; parameters are as before"
                f" this step. torch.distributed says: {error}"
            ) from error


def training_group(
    group: "distributed.ProcessGroup | None",
    device: torch.device,
    *,
    file: object,
    allow: str | None,
) -> TrainingGroup | None:
    """The group of a trainer. Raises InputError for what groups do not do yet."""
    if group is None:
        return None
    for name, given in (("file", file), ("allow", allow)):
        if given is not None:
            raise InputError(f"{name} is not supported with a process_group; leave one out")
    return TrainingGroup(group, device)


def begin_together(
    group: TrainingGroup | None,
    net: nn.Module,
    x: Tensor,
    settings: Settings,
    bucket_size: int | str | None,
    sum_dtype: str,
) -> Settings:
    """Give all processes the first one's parameters and buffers; returns the settings of a step.

    They stay as they are without a group. Raises InputError where the network, the samples or the
    settings differ.
    """
    if group is None:
        return settings
    if sum_dtype not in SUM_DTYPES:
        raise InputError(f"sum_dtype is {sum_dtype!r}; choose {' or '.join(SUM_DTYPES)}")
    nbytes = parse_bytes(bucket_size) or BUCKET_NBYTES
    settings = replace(settings, ranks=Ranks(group.size, nbytes, SUM_DTYPES[sum_dtype]))
    named = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    forms = {name: (tuple(each.shape), each.requires_grad) for name, each in named.items()}
    what: dict[str, Any] = {"samples of shape": tuple(x.shape[1:]), "type": settings.dtype}
    what |= {"losses": repr(settings.losses), "optimizer": repr(settings.optimizer)}
    what |= {"ranks": settings.ranks, **{f"tensor {name}": form for name, form in forms.items()}}
    group.agree(what)
    group.broadcast(named.values())
    return settings
