"""The processes over which the SyncBatchNorm layers of a network normalize."""

from torch import distributed, nn

from ..errors import EngineError, InputError
from ..graph import Network


def synchronized_ranks(net: nn.Module) -> list[int] | None:
    """The numbers of the processes whose samples SyncBatchNorm layers normalize together.

    None without such layers, and before torch.distributed is initialized. Raises InputError where
    layers of a network have different processes.
    """
    layers = {path: m for path, m in net.named_modules() if isinstance(m, nn.SyncBatchNorm)}
    if not layers or not distributed.is_available() or not distributed.is_initialized():
        return None
    ranks = {
        path: distributed.get_process_group_ranks(each.process_group or distributed.group.WORLD)
        for path, each in layers.items()
    }
    (first, of_first), *others = ranks.items()
    for path, of_other in others:
        if of_other != of_first:
            raise InputError(
                f"{path} normalizes over processes {of_other}, and {first} over {of_first};"
                " give all SyncBatchNorm layers one process_group"
            )
    return of_first


def synchronized_group(net: nn.Module) -> "distributed.ProcessGroup | None":
    """The group of several processes that `synchronized_ranks` tells; None where there is none."""
    if len(synchronized_ranks(net) or ()) < 2:
        return None
    layers = (module for module in net.modules() if isinstance(module, nn.SyncBatchNorm))
    return next(layers).process_group or distributed.group.WORLD


def check_synchronized(net: nn.Module, ranks: list[int] | None) -> None:
    """Raise InputError for SyncBatchNorm layers over other processes than train together.

    `ranks` are their numbers; None for a trainer alone.
    """
    wanted = synchronized_ranks(net)
    if wanted is None or wanted == ranks or (ranks is None and len(wanted) == 1):
        return
    have = "the trainer has no process_group" if ranks is None else f"{ranks} train together"
    raise InputError(
        f"SyncBatchNorm normalizes over processes {wanted}, and {have}; give layers and trainer one"
        " process_group, or use BatchNorm2d"
    )


def synchronizes(network: Network) -> bool:
    """Whether an op of a traced network takes the statistics of several processes."""
    return any(op.attrs.get("synchronized") and op.attrs["training"] for op in network.ops)


def check_alone(net: nn.Module) -> None:
    """Raise EngineError where layers that were planned for one process now have several."""
    ranks = synchronized_ranks(net)
    if ranks is not None and len(ranks) > 1:
        raise EngineError(
            f"SyncBatchNorm normalizes over processes {ranks}, and was planned for one; call"
            " init_process_group, and make such layers, before the network is virtualized or"
            " trained"
        )
