"""The processes over which the SyncBatchNorm layers of a network normalize."""

from torch import distributed, nn

from ..errors import EngineError, InputError


def synchronizes(net: nn.Module) -> bool:
    """Whether a network has SyncBatchNorm layers."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in net.modules())


def check_alone() -> None:
    """Raise EngineError where there are other processes, for layers that were planned without."""
    if distributed.is_available() and distributed.is_initialized():
        count = distributed.get_world_size()
        if count > 1:
            raise EngineError(
                f"torch.distributed now has {count} processes, over which SyncBatchNorm would"
                " normalize; call init_process_group before virtualize"
            )


def synchronized_group(net: nn.Module) -> "distributed.ProcessGroup | None":
    """The group whose samples SyncBatchNorm layers normalize together; None for one process.

    Raises InputError where layers of a network have different groups.
    """
    layers = {path: m for path, m in net.named_modules() if isinstance(m, nn.SyncBatchNorm)}
    if not layers or not distributed.is_available() or not distributed.is_initialized():
        return None
    groups = {path: each.process_group or distributed.group.WORLD for path, each in layers.items()}
    ranks = {path: distributed.get_process_group_ranks(each) for path, each in groups.items()}
    (first, of_first), *others = ranks.items()
    for path, of_other in others:
        if of_other != of_first:
            raise InputError(
                f"{path} normalizes over processes {of_other}, and {first} over {of_first};"
                " give all SyncBatchNorm layers one process_group"
            )
    return groups[first] if len(of_first) > 1 else None


def check_synchronized(net: nn.Module, ranks: list[int] | None) -> None:
    """Raise InputError for SyncBatchNorm layers over other processes than train together.

    `ranks` are their numbers; None for a trainer alone.
    """
    wanted = synchronized_group(net)
    if wanted is None:
        return
    processes = distributed.get_process_group_ranks(wanted)
    if ranks is None:
        raise InputError(
            f"SyncBatchNorm normalizes over processes {processes}, and the trainer has no"
            " process_group; give it one, or use BatchNorm2d"
        )
    if ranks != processes:
        raise InputError(
            f"SyncBatchNorm normalizes over processes {processes}, and {ranks} train"
            " together; give the layers the trainer's process_group"
        )
