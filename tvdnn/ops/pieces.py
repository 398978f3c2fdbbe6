"""Updates by processes that each have a shard of the optimizer's state (ZeRO stage 1).

A process has the state of a piece of each parameter (`kernels/optim/pieces.py`). A bucket of
gradients is summed by a reduce-scatter, which leaves each process the sums of its own pieces. Each
updates these, puts them into the bucket in the place of their gradients, and an all-gather gives
all the whole parameters. In float32 both move what one all-reduce of the bucket moves. Updates
begin behind the last sum, as without shards: until then nothing has changed in any process.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

from ..graph import Collective, Op, Use
from ..kernels.optim.pieces import heads_of, piece_of, piece_offsets
from .builder import Builder, Ranks
from .operator import Launch
from .process_sums import flat, run_gather, run_scatter

GATHERED_NBYTES: Final = 1 << 20  # of device memory at once, for whole states in a checkpoint


def bucket_of_pieces(b: Builder, op: Op) -> int:
    """Elements of a bucket with the pieces of all processes."""
    sizes = [prod(b.param_shape(param)) for param in op.params]
    processes: int = op.attrs["processes"]
    numel: int = processes * piece_offsets(sizes, processes)[-1]
    return numel


def has_short_piece(b: Builder, op: Op) -> bool:
    """Whether a bucket has elements behind the pieces of its parameters."""
    return bucket_of_pieces(b, op) > sum(prod(b.param_shape(param)) for param in op.params)


def add_updates_of_pieces(
    b: Builder, ranks: Ranks, ops: Sequence[Op], in_float32: Callable[[Builder, Op], Use]
) -> None:
    """Update pieces by the summed gradients of buckets, and give all the parameters.

    A bucket is unpacked behind the update of the next, which its gather runs beside.
    """
    gathers: dict[str, Any] = {"ranks": ranks.size, "collective": Collective.ALL_GATHER}
    packed: list[tuple[Op, Use]] = []
    with b.updating():
        for op in ops:
            bucket = in_float32(b, op)
            nbytes = sum(map(b.update_nbytes, op.params)) // ranks.size
            nbytes += 2 * nbytes_of_pieces(b, op, bucket)
            settings: dict[str, Any] = {"updates": op.params, "attrs": b.update_attrs}
            b.add_pass(op, "update_piece", (bucket,), (bucket,), extra_nbytes=nbytes, **settings)
            b.add_pass(op, "gather", (bucket,), (bucket,), effects=True, **gathers)
            packed.append((op, bucket))
            if len(packed) > 1:
                _add_unpack(b, *packed.pop(0))
        for op, bucket in packed:
            _add_unpack(b, op, bucket)


def _add_unpack(b: Builder, op: Op, bucket: Use) -> None:
    nbytes = sum(map(b.param_nbytes, op.params))
    b.add_pass(op, "unpack_pieces", (bucket,), (), updates=op.params, extra_nbytes=nbytes)


def nbytes_of_pieces(b: Builder, op: Op, bucket: Use) -> int:
    """Bytes of the own range of a bucket, less those of all of it, which a use counts."""
    nbytes = b.buffers[bucket.buffer].nbytes
    processes: int = op.attrs["processes"]
    return nbytes // processes - nbytes


def _own_range(a: Launch, bucket: int) -> slice:
    """The range of a bucket of so many elements that this process's pieces have."""
    numel = bucket // a.attrs["processes"]
    return slice(a.control.rank * numel, (a.control.rank + 1) * numel)


def _run_pack(a: Launch) -> None:
    processes = a.attrs["processes"]
    a.kernels.pack_pieces([*map(flat, a.reads)], flat(a.writes[0]), processes=processes)


def _run_widen(a: Launch) -> None:
    """Widen the sums of this process's own pieces."""
    source, target = flat(a.reads[0]), flat(a.writes[0])
    own = _own_range(a, source.numel())
    a.kernels.pack((source[own],), target[own], alignment=1)


def _run_update(a: Launch) -> None:
    """Update this process's pieces, and put them into the bucket."""
    bucket, processes, rank = flat(a.writes[0]), a.attrs["processes"], a.control.rank
    params, *states = zip(*a.updates, strict=True)
    own = [piece_of(param, processes, rank) for param in params]
    sums = bucket[_own_range(a, bucket.numel())]
    starts = piece_offsets([param.numel() for param in params], processes)
    grads = [sums[n : n + each.numel()] for n, each in zip(starts, own, strict=False)]
    kept = (heads_of(pieces, own) for pieces in states)
    run = getattr(a.kernels, f"{a.attrs['optimizer']}_many")
    run(own, grads, *kept, a.control.optimizer, **a.attrs["switches"])
    a.kernels.pack_pieces([*map(flat, params)], bucket, processes=processes, process=rank)


def _run_unpack(a: Launch) -> None:
    params = [flat(param) for param, *_ in a.updates if param is not None]
    a.kernels.unpack_pieces(flat(a.reads[0]), params, processes=a.attrs["processes"])


LAUNCHES: Final = {
    "scatter": run_scatter,
    "gather": run_gather,
    "pack_pieces": _run_pack,
    "widen_piece": _run_widen,
    "update_piece": _run_update,
    "unpack_pieces": _run_unpack,
}
