"""The processes that train one network together, each on its part of a batch."""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, distributed, nn

from ..errors import EngineError, InputError, TvdnnError
from ..kernels.copy.labels import OTHER_STEPS
from ..ops import Settings
from ..ops.builder import BUCKET_NBYTES, Ranks
from ..ops.operator import Control
from ..units import parse_bytes
from .synchronized_group import check_synchronized

Result = TypeVar("Result")
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
MOST: Final = 64  # of words whose squares are summed: exact in float32 for thousands of processes
ALONE: Final = "none"  # in the place of a group
DIFFERENT_STEPS: Final = (
    "step {step}: the processes of the group do different steps, or cut them into different parts;"
    " all call step as often, with the same accumulate"
)
SUM_DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16"}


class TrainingGroup:
    """A process group of torch.distributed whose processes train together.

    Raises InputError where this process is not of the group.
    """

    def __init__(self, group: "distributed.ProcessGroup", device: torch.device) -> None:
        self._group, self.rank = group, distributed.get_rank(group)
        if self.rank < 0:
            raise InputError("this process is not of the process_group; leave it out of training")
        self.size = distributed.get_world_size(group)
        backends = distributed.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
        self.sums_in_graphs = f"{device.type}:nccl" in backends.split(",")
        self.gathers = self.sums_in_graphs or device.type == "cpu"  # gloo does on CPUs alone

    @property
    def ranks(self) -> list[int]:
        """The numbers of its processes among all."""
        return distributed.get_process_group_ranks(self._group)

    def sum(self, values: Tensor) -> None:
        """Sum a tensor over the processes, in its place and in the stream's order.

        Raises EngineError where another process has ended, or does not answer in time.
        """
        with self._named("sum"):
            distributed.all_reduce(values, group=self._group)

    def scatter(self, values: Tensor) -> None:
        """Sum a dense tensor over the processes; each has its own of equal ranges of the sum."""
        with self._named("sum"):
            distributed.reduce_scatter_tensor(self._own(values), values, group=self._group)

    def gather(self, values: Tensor) -> None:
        """Give all processes what each has in its own of equal ranges of a dense tensor."""
        with self._named("gathering"):
            distributed.all_gather_into_tensor(values, self._own(values), group=self._group)

    def _own(self, values: Tensor) -> Tensor:
        """This process's range of a tensor of one dimension."""
        return values.view(self.size, -1)[self.rank]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the tensors of the first."""
        source = distributed.get_global_rank(self._group, 0)
        with self._named("broadcast"), torch.no_grad():
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
        with self._named("broadcast"):
            distributed.broadcast_object_list(held, source, group=self._group)
        if held[1] is not None:
            raise held[1]
        result: Result = held[0]
        return result

    def unless_one_fails(self, make: Callable[[], Result]) -> Result:
        """What this process makes. Raises EngineError where another one raises an error."""
        made, error = None, None
        try:
            made = make()
        except TvdnnError as raised:
            error = raised
        for rank, text in enumerate(self.all_of(error and str(error))):
            if text is not None and error is None:
                raise EngineError(f"process {rank} of the group cannot begin: {text}")
        if error is not None:
            raise error
        result: Any = made
        return result  # type: ignore[no-any-return]

    def all_of(self, mine: Result) -> list[Result]:
        """What every process gives, in their order."""
        with self._named("comparison"):
            return gathered(mine, self._group)

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

    def begin(self, control: Control, kernels: Any, samples: int, parts: int, step: int) -> None:
        """Begin a step of so many samples, in so many parts: the first sum of all processes.

        It counts their samples, by which gradients are scaled, and tells all of a fault in one.
        Raises EngineError on a CPU where processes do other steps, or as many in other parts; on a
        GPU a later step tells.
        """
        assert control.own is not None
        assert control.status is not None
        assert control.faults is not None
        parts, number = parts % MOST, step % MOST
        own = torch.tensor([samples, parts, parts**2, number, number**2], dtype=torch.float32)
        control.own.copy_(own, non_blocking=True)
        kernels.pack((control.own, control.flag), control.status, alignment=1)
        self.sum(control.status)
        words = control.status, control.own, control.flag, control.scale
        faults = control.faults.step, control.faults.record
        kernels.check_status(*words, *faults, processes=self.size)
        if not control.flag.is_cuda and control.faults.record[0].item() == OTHER_STEPS.value:
            raise EngineError(DIFFERENT_STEPS.format(step=step))

    def mean(self, values: Iterable[Tensor], control: Control) -> None:
        """Replace tensors of float32 by their means over the samples of all, in their places."""
        share = control.share
        for each in values:
            each.mul_(share["weight"][0] / share["total"][0])
            self.sum(each)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """A context in which an error of torch's names the process and what failed."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise EngineError(
                f"process {self.rank} of {self.size}: a {what} over all processes failed. One has"
                f" ended, does other steps, or did not answer in time: {error}"
            ) from error


def gathered(mine: Result, group: "distributed.ProcessGroup") -> list[Result]:
    """What every process of a group gives, in their order."""
    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, mine, group=group)
    return found


def training_group(
    group: "distributed.ProcessGroup | TrainingGroup | str | None",
    net: nn.Module,
    device: torch.device,
    *,
    file: object,
    allow: str | None,
) -> TrainingGroup | None:
    """The group of a trainer.

    Raises InputError for what groups do not do yet, and where torch.distributed is not initialized:
    its `group.WORLD` is None until then.
    """
    if group == ALONE:
        check_synchronized(net, None)
        return None
    if group is None or isinstance(group, str):
        raise InputError(
            f"process_group is {group!r}, not a group of torch.distributed; call"
            " torch.distributed.init_process_group first, or leave it out to train alone"
        )
    for name, given in (("file", file), ("allow", allow)):
        if given is not None:
            raise InputError(f"{name} is not supported with a process_group; leave one out")
    if isinstance(group, TrainingGroup):
        return group
    found = TrainingGroup(group, device)
    check_synchronized(net, found.ranks)
    return found


def grouped(group: TrainingGroup | None, host_budget: int | str | None) -> dict[str, Any]:
    """The fields of a request for a group. Its processes share the host budget of a machine.

    Each has as much as where most are on one, since all have one plan.
    A process of several keeps its first plan: by what it measures, it alone would capture sums anew
    that others wait for.
    """
    if group is None:
        return {"group": None}
    machines = group.all_of(_machine())
    nbytes = parse_bytes(host_budget)
    share = None if nbytes is None else nbytes // max(Counter(machines).values())
    kept = {"feedback": False} if group.size > 1 else {}
    return {"group": group, "host_budget": share, **kept}


def _machine() -> str:
    """What tells this machine from others, whatever containers call it."""
    with suppress(OSError):
        return BOOT.read_text()
    return platform.node()


def begin_together(
    group: TrainingGroup | None,
    net: nn.Module,
    x: Tensor,
    settings: Settings,
    bucket_size: int | str | None,
    sum_dtype: str,
    early_updates: bool,
    shard: str | None,
) -> Settings:
    """Give all processes the first one's parameters and buffers; returns the settings of a step.

    They stay as they are without a group. Raises InputError where the network, the samples or the
    settings differ.
    """
    sharded = is_sharded(shard, None if group is None else group.size)
    if group is None:
        return settings
    if sum_dtype not in SUM_DTYPES:
        raise InputError(f"sum_dtype is {sum_dtype!r}; choose {' or '.join(SUM_DTYPES)}")
    nbytes = parse_bytes(bucket_size) or BUCKET_NBYTES
    if sharded and not group.gathers:
        raise InputError(
            'shard="optimizer" gathers parameters of GPUs, which gloo does not; make the'
            " process_group by NCCL"
        )
    ranks = Ranks(group.size, nbytes, SUM_DTYPES[sum_dtype], early_updates, sharded)
    settings = replace(settings, ranks=ranks)
    named = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    forms = {
        name: (tuple(each.shape), each.stride(), str(each.dtype), each.requires_grad)
        for name, each in named.items()
    }
    what: dict[str, Any] = {"samples of shape": tuple(x.shape[1:]), "type": settings.dtype}
    what |= {"losses": repr(settings.losses), "optimizer": repr(settings.optimizer)}
    what |= {"ranks": settings.ranks, **{f"tensor {name}": form for name, form in forms.items()}}
    group.agree(what)
    group.broadcast(named.values())
    return settings


def is_sharded(shard: str | None, processes: int | None) -> bool:
    """Whether each of so many processes has a part of the optimizer's state. None: there is one.

    Raises InputError for a name that is none.
    """
    if shard not in (None, "optimizer"):
        raise InputError(f'shard is {shard!r}; choose "optimizer", or leave it out')
    if shard is not None and processes is None:
        raise InputError(
            'shard="optimizer" is for processes that torchrun starts; give their process_group'
        )
    return shard is not None
