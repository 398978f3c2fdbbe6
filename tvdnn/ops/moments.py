"""Moments of channels, slice by slice: made once, where the first op that normalizes them is.

The ranges of a map share a buffer of moments with it, as they share its bytes: each normalization
of a dense block adds those of the channels that are new.
"""

from collections.abc import Iterator

from ..graph import Op, Use
from ..kernels.batch_norm_tiles import BatchNormPlan
from .builder import Builder
from .containers import Channels, gaps_between
from .definition import Launch


def moments_of(b: Builder, op: Op, plan: BatchNormPlan) -> Use:
    """The moments of all slices of the op's input; passes make what there is not yet of them."""
    name, width, channels = _place(b, op)
    if name not in b.moments:
        b.moments[name] = []
        shape = plan.partials_shape(b.batch, width)
        b.add_groups(name, shape, plan.group, b.resolved(Use(b.input_of(op))).buffer)
    for reads, gap in _missing(b, op, b.moments[name], channels):
        writes = Use(name, per=plan.group, channels=_part_of(width, gap))
        b.add_pass(op, "moments", (reads,), (writes,), attrs={"group": plan.group})
        b.moments[name].append(gap)
    return Use(name, whole=True, channels=_part_of(width, channels))


def _place(b: Builder, op: Op) -> tuple[str, int, Channels]:
    """The buffer of moments, its width, and the channels of it that are the input's.

    A view whose channels are others than those of what it renames has a buffer of its own.
    """
    use, channels = b.resolved(Use(b.input_of(op))), b.shape(op.inputs[0])[-1]
    buffer = b.buffers[use.buffer]
    if use.width(buffer) != channels:
        return f"moments {op.inputs[0]}", channels, (0, channels)
    width = buffer.shape[-1]
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


def run_moments(a: Launch) -> None:
    x, moments = a.reads[0], a.writes[0]
    rows = x.view(x.shape[0], -1, moments.shape[-1])
    a.kernels.batch_norm_moments(rows, moments, **a.settings("group"))
