"""Squeeze and excitation: normalized maps that a global average and a gate alone read.

Both can normalize as they load what the map was made of. Nothing then keeps the map for the
backward pass. Nothing stores it either, unless a convolution reads it and its gates in the place of
their product.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from torch import Tensor

from ..graph import Op, Use
from ..kernels.conv.remade import has_few_tiles
from ..kernels.norm.normalized_again import CHEAP, Normalized
from .builder import Builder
from .conv_sizes import filter_shape
from .operator import Launch
from .remade_maps import (
    GATED,
    NORMALIZED,
    READERS,
    Source,
    makes_product,
    may_remake,
    normalized_source,
    source_of,
)

GATES: Final = frozenset({GATED, "gate_multiply_add", "gate_multiply_add_relu"})
AVERAGE: Final = "adaptive_avg_pool2d"


def squeezed_source(b: Builder, value: str) -> Source | None:
    """What a map was normalized of that its readers can normalize again, or None."""
    op = b.makers.get(value)
    if not may_remake(b) or op is None or op.kind not in NORMALIZED:
        return None
    if not (b.needs_grad(value) and op.attrs["training"] and _is_squeezed(b, value)):
        return None
    if not _pays(b, _product_of(b, value), op.attrs.get("function", "")):
        return None
    x = b.input_of(op)
    alike = b.buffers[x].shape == b.shape(value) and b.pitch(x) == b.width_of(value)
    if value in b.aliases or b.is_beside(b.resolved(Use(x))) or not (alike and b.starts_words(x)):
        return None
    return normalized_source(b, op)


def _is_squeezed(b: Builder, value: str) -> bool:
    """Whether one gate and one average of all pixels alone read the value."""
    readers = b.readers_of[value]
    gates = [each for each in readers if each.kind in GATES and each.inputs[0] == value]
    averages = [each for each in readers if each.kind == AVERAGE]
    if (len(readers), len(gates), len(averages)) != (2, 1, 1) or value in b.network.outputs:
        return False
    return prod(b.shape(averages[0].output)[1:-1]) == 1


def _product_of(b: Builder, value: str) -> Op:
    return next(each for each in b.readers_of[value] if each.kind in GATES)


def _pays(b: Builder, product: Op, function: str) -> bool:
    """Whether to make the map again takes no longer than to load it.

    The gradient of a convolution's weight makes it between its products, which wait. Exponentials
    would cost EfficientNet-B0 2% of its step (computed, 2026-11), and each more tile of outputs
    makes the map once more.
    """
    reader = b.readers_of[product.output][0] if b.has_one_reader(product.output) else None
    if product.kind != GATED or reader is None or reader.kind not in READERS:
        return True
    return function in CHEAP and has_few_tiles(filter_shape(b, reader))


def lies_unstored(b: Builder, op: Op) -> bool:
    """Put a normalization's output where its input lies, if its readers normalize that."""
    source = squeezed_source(b, op.output)
    if source is None:
        return False
    product = _product_of(b, op.output)
    if product.kind == GATED and makes_product(b, product, source.map):
        return False
    b.put(op.output, source.map)
    b.normalized_by_readers.add(op.output)
    return True


def unstored_source(b: Builder, value: str) -> Source | None:
    """What a value that nothing stores is normalized of; None of one that is stored."""
    return squeezed_source(b, value) if value in b.normalized_by_readers else None


def source_in_backward(b: Builder, value: str) -> Source | None:
    """`source_of` as a backward pass has it: of a gated map that was squeezed, the map before."""
    source = source_of(b, value)
    if source is None or source.attrs["maker"] != "gate":
        return source
    before = squeezed_source(b, b.makers[value].inputs[0])
    if before is None:
        return source
    attrs = {**before.attrs, "maker": "normalize gate"}
    return replace(before, attrs=attrs, behind=(source.beside,))


def add_reader(
    b: Builder, op: Op, role: str, source: Source | None, reads: Sequence[Use],
    writes: Sequence[Use], attrs: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """A pass that normalizes its first map, with a source; its statistics come behind all reads."""
    if source is None:
        b.add_pass(op, role, reads, writes, attrs=attrs)
        return
    attrs = {**(attrs or {}), **source.attrs}
    b.add_pass(op, role, (*reads, source.beside), writes, params=source.params, attrs=attrs)


def split_reads(a: Launch) -> tuple[list[Tensor], Normalized | None]:
    """The reads of a pass of `add_reader`, and how it normalizes the first."""
    if "maker" not in a.attrs:
        return list(a.reads), None
    *reads, statistics = a.reads
    function, coefficient = a.attrs["function"], a.attrs["coefficient"]
    return reads, Normalized(statistics, *a.params, function, coefficient)
