"""Halo tiles: the row tiles of a launch as one map, with the neighbour rows that windows read.

A tile is read in place where its neighbour sections are adjacent in memory, as in a map that is
held whole. Otherwise its rows are first copied together into the scratch of the launch. That reads
the bytes of the first and the last unit of a run twice, and writes them once more.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..graph import Buffer, Graph, Pass, Use
from ..planner.ir.schedule import Operand, Step
from .views import ByteViews

# Bytes. Kernels are chosen by the alignment of their operands, which must not depend on the place.
ALIGNMENT = 16

Copy = tuple[torch.Tensor, torch.Tensor]  # source, target


@dataclass(frozen=True, slots=True)
class HaloTile:
    """The rows that a launch reads: `rows` [1, H, W, C], `beside` of them above and below its own.

    `copies` come before the launch. They gather rows that are not adjacent.
    """

    rows: torch.Tensor
    beside: tuple[int, int]
    copies: tuple[Copy, ...] = ()


def halo_tile(
    graph: Graph, pass_: Pass, step: Step, piece: tuple[int, int], memory: ByteViews
) -> HaloTile:
    """The halo tile that the launch of domain rows `piece` reads."""
    pairs = zip(pass_.reads, step.reads, strict=True)
    found = {
        use.neighbour: (use, operand) for use, operand in pairs if use.neighbour or any(use.halo)
    }
    use, own = found[0]
    buffer = graph.buffers[use.buffer]
    others = [found[side][1] for side in (-1, 1) if side in found]
    held = (_joined(own, others), *others)
    height, (above, below) = buffer.shape[1], _beside(graph, use, piece)
    start, stop = height * piece[0], height * piece[1]
    bounds = [(start - above, start), (start, stop), (stop, stop + below)]
    scratch = step.writes[len(pass_.writes) - 1]
    image = memory.view(scratch, graph.buffers[scratch.buffer])
    image = image[: stop - start + above + below]
    whole = _rows(memory, use, buffer, held[:1], (start - above, stop + below))
    if whole is not None and (whole.data_ptr() - image.data_ptr()) % ALIGNMENT == 0:
        return HaloTile(whole[None], (above, below))
    parts = [_rows(memory, use, buffer, held, each) for each in bounds]
    sources = [part for part in parts if part is not None]
    assert len(sources) == len(bounds), f"{pass_.name} finds no rows beside {piece}"
    targets = image.split([len(source) for source in sources])
    return HaloTile(image[None], (above, below), tuple(zip(sources, targets, strict=True)))


def joined_tiles(tiles: torch.Tensor) -> torch.Tensor:
    """Row tiles [n, h, W, C] of a map or of a channel range as one map [1, n * h, W, C]."""
    return tiles.view(1, -1, *tiles.shape[2:])


def _beside(graph: Graph, use: Use, piece: tuple[int, int]) -> tuple[int, int]:
    """The numbers of neighbour rows above and below inside the sample of `piece`."""
    above, below = use.halo
    return above if piece[0] % graph.row_tiles else 0, below if piece[1] % graph.row_tiles else 0


def _joined(own: Operand, others: Iterable[Operand]) -> Operand:
    """The bytes of `own` joined with those of `others` that are adjacent."""
    for other in others:
        first, second = (own, other) if own.start < other.start else (other, own)
        if first.stop == second.start and first.end == second.offset:
            nbytes = first.nbytes + second.nbytes
            own = first._replace(stop=second.stop, nbytes=nbytes)
    return own


def _rows(
    memory: ByteViews, use: Use, buffer: Buffer, held: Iterable[Operand], bounds: tuple[int, int]
) -> torch.Tensor | None:
    """Rows of pixels [H, W, C] from the operand that holds all of them. None where none does."""
    height = buffer.shape[1]
    for operand in held:
        first, last = height * operand.start, height * operand.stop
        if first <= bounds[0] and bounds[1] <= last:
            rows = memory.view(operand, buffer).flatten(0, 1)
            rows = rows[bounds[0] - first : bounds[1] - first]
            return rows if use.channels is None else rows[..., slice(*use.channels)]
    return None
