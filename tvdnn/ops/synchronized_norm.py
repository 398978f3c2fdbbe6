"""Batch normalization over the samples of all processes: torch's SyncBatchNorm.

Moments of each process lie in a slot of their own, and one sum over the processes fills all slots
(`kernels/norm/moments_of_ranks.py`). Backward, the gradient of an input takes the means over all
rows of two sums over channels. The pass takes means over its own rows, of the sums over processes
times the share that it has of all rows.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Final

from ..graph import Kind, Op, Use
from .builder import Builder, whole
from .operator import Launch
from .process_sums import flat, run_sum
from .statistics import moments_of, running_of, slices_for, statistics_of


def is_synchronized(b: Builder, op: Op) -> bool:
    """Whether an op normalizes by the statistics of several processes."""
    return b.world > 1 and op.attrs["training"] and op.attrs.get("synchronized", False)


def add_statistics(b: Builder, op: Op, tracked: tuple[str, ...]) -> None:
    """Add the passes that find the statistics of all processes' rows."""
    shape = b.shape(op.inputs[0])
    own = whole(b.add_whole(f"own {statistics_of(op)}", Kind.AUX, (3, shape[-1])))
    slots = whole(b.add_whole(f"slots {op.name}", Kind.AUX, (b.world, 3, shape[-1])))
    share = whole(b.add_whole(_share_of(op), Kind.AUX, (2,)))
    attrs = {"group": slices_for(b, op).group, "shape": shape}
    b.add_pass(op, "own_statistics", (moments_of(b, op),), (own,), attrs=attrs, effects=True)
    rows = {"rows": prod(shape[:-1])}
    b.add_pass(op, "own_slot", (own,), (slots,), attrs=rows, effects=True)
    b.add_pass(op, "sum", (slots,), (slots,), effects=True, ranks=b.world)
    merged = whole(statistics_of(op)), share
    b.add_pass(op, "merge_slots", (slots,), merged, updates=tracked, effects=True)


def sums_of_all(b: Builder, op: Op, sums: tuple[Use, ...]) -> tuple[Use, ...]:
    """The gradients of weight and bias as the gradient of the input takes them."""
    if not is_synchronized(b, op):
        return sums
    shape = 2, b.shape(op.inputs[0])[-1]
    total, scaled = (
        whole(b.add_whole(f"{name} of all {op.name}", Kind.PARTIAL, shape))
        for name in ("grad sums", "scaled grad sums")
    )
    b.add_pass(op, "pack_sums", sums, (total,), effects=True)
    b.add_pass(op, "sum", (total,), (total,), effects=True, ranks=b.world)
    b.add_pass(op, "scale_sums", (total, whole(_share_of(op))), (scaled,), effects=True)
    return (scaled,)


def _share_of(op: Op) -> str:
    return f"share {op.name}"


def _run_own_statistics(a: Launch) -> None:
    settings = a.settings("shape", "group", "eps")
    operands = a.reads[0], a.writes[0], None, None, None
    a.kernels.batch_norm_statistics(*operands, **settings, momentum=0.0)


def _run_own_slot(a: Launch) -> None:
    a.kernels.own_slot(a.reads[0], a.writes[0], rank=a.control.rank, **a.settings("rows"))


def _run_merge_slots(a: Launch) -> None:
    running = running_of(a)
    settings = {"rank": a.control.rank, "flag": a.control.flag, **a.settings("momentum", "eps")}
    a.kernels.merge_slots(a.reads[0], *a.writes, *running, **settings)


def _run_pack_sums(a: Launch) -> None:
    a.kernels.pack(a.reads, flat(a.writes[0]), alignment=1)


def _run_scale_sums(a: Launch) -> None:
    total, share = a.reads
    words = {"weight": share[:1], "total": share[1:]}
    a.kernels.pack((flat(total),), flat(a.writes[0]), **words, alignment=1)


SYNCHRONIZED: Final[Mapping[str, Callable[[Launch], None]]] = {
    "own_statistics": _run_own_statistics,
    "own_slot": _run_own_slot,
    "sum": run_sum,
    "merge_slots": _run_merge_slots,
    "pack_sums": _run_pack_sums,
    "scale_sums": _run_scale_sums,
}
