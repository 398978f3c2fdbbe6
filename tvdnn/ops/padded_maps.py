"""Padded maps: maps whose pixels lie at whole 16 bytes, in front of channels that nobody reads.

TMA moves only such maps, and loads of 16 bytes want them. A map of 18 channels that a convolution
makes or reads lies in the first 18 of 24, as a range of channels. The others have no meaning. The
weight's gradient of 18->18 3x3 @56 takes 0.41 ms without (128 samples in bf16, H100, 2026-11).
Logits of pixels that cross-entropy reads are padded too, whoever makes them.

The kernel of a convolution, and thereby its bits, depend on whether its maps are padded. The same
values are padded in a network whose ops are joined and in one whose ops are not.
"""

from collections.abc import Mapping, Set
from typing import Final

from ..graph import Network, Op
from .concat_views import WORD, StridedSupport, ValueUses

LEAST_CHANNELS: Final = 16  # fewer are an axis with the taps of a filter
MOST_SHARE: Final = 1 / 3  # of a map's channels, which its padding may be


def padded_widths(
    network: Network, strided: Mapping[str, StridedSupport], in_place: Set[str]
) -> dict[str, int]:
    """By value of the traced network that lies in a padded map, the channels of that map.

    A convolution makes or reads it, or cross-entropy reads it. Its maker and all its readers accept
    ranges. `in_place` are the kinds of op whose output may take the bytes of an input.
    """
    uses = ValueUses(network, strided)
    found: dict[str, int] = {}
    for group in _groups(network, uses, in_place):
        widths = [_padded_width(network.values[op.output].shape) for op in group]
        fits = all(widths) and all(uses.may_be_padded(op.output) for op in group)
        if fits and any(uses.wants_words(op.output) for op in group):
            found |= {op.output: width for op, width in zip(group, widths, strict=True)}
    return found


def _padded_width(shape: tuple[int, ...]) -> int:
    """Channels of the padded map; 0 for values that are none or need no padding."""
    if len(shape) != 4 or shape[1:3] == (1, 1) or shape[-1] < LEAST_CHANNELS:
        return 0
    padding = -shape[-1] % WORD
    return shape[-1] + padding if 0 < padding <= MOST_SHARE * shape[-1] else 0


def _groups(network: Network, uses: ValueUses, in_place: Set[str]) -> list[list[Op]]:
    """The ops whose outputs are padded together: one kernel computes them, or they share bytes.

    The first are a convolution, the ReLU and the max pooling behind it.
    """
    groups: dict[str, list[Op]] = {}
    for op in network.ops:
        before = groups.get(op.inputs[0]) if op.inputs else None
        if before is not None and _joins(op, before[-1], in_place) and uses.is_alone(op):
            before.append(op)
            groups[op.output] = before
        elif op.kind != "view":
            groups[op.output] = [op]
    return list({id(group): group for group in groups.values()}.values())


def _joins(op: Op, before: Op, in_place: Set[str]) -> bool:
    return op.kind in in_place or (before.kind, op.kind) == ("relu", "max_pool2d")
