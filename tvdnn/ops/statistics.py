"""Mean and M2 of channels by slice of the samples, made once, for the first op that normalizes.

A convolution may leave the mean and M2 of tiles of its output, which then only need to be merged.
The ranges of a map share a buffer of partials, as they share its bytes: each normalization of a
dense block adds the partials of its new channels.
"""

from collections.abc import Iterator

from torch import Tensor

from ..graph import RUN_CHUNKS, Kind, Op, Use
from ..kernels.conv.batch_stats import MomentCells
from ..kernels.norm.batch_norm_tiles import BatchNormPlan, batch_norm_plan
from .builder import Builder
from .concat_views import Channels, gaps_between
from .operator import Launch


def add_cells(b: Builder, op: Op, cells: MomentCells) -> Use | None:
    """The use of a buffer for the moments of cells of the op's output.

    None where a launch would have to be longer than a run for them, or the output lies beside
    others in one map.
    """
    y = b.buffer_of[op.output]
    if b.is_beside(b.resolved(Use(y))) or cells.group > RUN_CHUNKS * b.buffers[y].section:
        return None
    b.moment_cells[y] = cells
    shape = cells.shape(b.batch, b.shape(op.output)[-1])
    return Use(b.add_groups(_cells(y), shape, cells.group, y, Kind.AUX), per=cells.group)


def slices_for(b: Builder, op: Op) -> BatchNormPlan:
    """The slices of the op's input: groups of whole tiles where a convolution left such."""
    cells = _cells_of(b, op)
    return BatchNormPlan(cells.group, 1) if cells else batch_norm_plan(b.shape(op.inputs[0]))


def moments_of(b: Builder, op: Op) -> Use:
    """The partials of all slices of the op's input. Passes make the missing ones."""
    x, plan = b.input_of(op), slices_for(b, op)
    name, width, channels = _place(b, op)
    if name not in b.moments:
        b.moments[name] = []
        shape = plan.partials_shape(b.batch, width)
        b.add_groups(name, shape, plan.group, b.resolved(Use(x)).buffer)
        if cells := _cells_of(b, op):
            reads, writes = (
                Use(each, per=plan.group) for each in (_cells(b.resolved(Use(x)).buffer), name)
            )
            b.add_pass(op, "merge_cells", (reads,), (writes,), attrs={"cells": cells})
            b.moments[name].append(channels)
    for reads, gap in _missing(b, op, b.moments[name], channels):
        writes = Use(name, per=plan.group, channels=_part_of(width, gap))
        b.add_pass(op, "moments", (reads,), (writes,), attrs={"group": plan.group})
        b.moments[name].append(gap)
    return Use(name, whole=True, channels=_part_of(width, channels))


def statistics_of(op: Op) -> str:
    """The buffer of the statistics that a normalization normalizes by."""
    return f"statistics {op.name}"


def _cells(y: str) -> str:
    return f"cells of {y}"


def _cells_of(b: Builder, op: Op) -> MomentCells | None:
    """The tiles whose partials the maker of the op's input left."""
    x = b.input_of(op)
    return b.moment_cells.get(b.resolved(Use(x)).buffer) if b.keeps_channels(x) else None


def _place(b: Builder, op: Op) -> tuple[str, int, Channels]:
    """The buffer of partials, its width, and the channels that are the input's.

    A view with other channels than its base has a buffer of its own.
    """
    use, channels = b.resolved(Use(b.input_of(op))), b.shape(op.inputs[0])[-1]
    if not b.keeps_channels(b.input_of(op)):
        return f"moments {op.inputs[0]}", channels, (0, channels)
    width = b.buffers[use.buffer].shape[-1]
    return f"moments {use.buffer}", width, use.channels or (0, width)


def _missing(
    b: Builder, op: Op, made: list[Channels], channels: Channels
) -> Iterator[tuple[Use, Channels]]:
    """The uses of the input whose moments are to be made, and the channels that these fill."""
    use = b.resolved(Use(b.input_of(op)))
    for gap in gaps_between(made, channels):
        yield use if gap == channels else Use(use.buffer, channels=gap), gap


def _part_of(width: int, channels: Channels) -> Channels | None:
    return None if channels == (0, width) else channels


def running_of(a: Launch) -> tuple[Tensor | None, ...]:
    """Running mean, running variance and number of batches that a launch changes; None for none."""
    tracked = [state[0] for state in a.updates]
    return (*tracked, *(None,) * (3 - len(tracked)))


def run_merge_cells(a: Launch) -> None:
    samples, cells = a.stop - a.start, a.attrs["cells"]
    a.kernels.merge_cells(a.reads[0], a.writes[0], samples=samples, cells=cells)


def run_moments(a: Launch) -> None:
    x, moments = a.reads[0], a.writes[0]
    rows = x.view(x.shape[0], -1, moments.shape[-1])
    a.kernels.batch_norm_moments(rows, moments, **a.settings("group"))
