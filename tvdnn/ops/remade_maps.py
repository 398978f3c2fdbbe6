"""Maps that their only reader makes as it loads what they are made of.

A normalized or gated map that a pointwise convolution alone reads is read once more, backward, by
the gradient of the convolution's weight. That launch can read what the map was made of instead and
make the same bits, so that nothing keeps the map beyond the forward pass. Where the convolution's
own launch does so too, the map is never stored: the value then lies where its source does. So do
normalized maps that a depthwise convolution alone reads.

In TF32 a launch rounds what it makes for its products, and reads what it makes that of exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor

from ..graph import Op, Use
from ..kernels.conv.depthwise import makes_depthwise_input
from ..kernels.conv.grad_weight.split_plan import remakes_maps
from ..kernels.conv.remade import Gated, MadeBy, makes_input, pays_to_make
from ..kernels.norm.normalized_again import Normalized
from .builder import Builder, whole
from .concat_views import WORD
from .conv_sizes import filter_shape, plan_settings, sides_of
from .operator import Launch
from .statistics import statistics_of

NORMALIZED: Final = frozenset({"batch_norm", "batch_norm_relu", "batch_norm_activation"})
GATED: Final = "gate_multiply"
READERS: Final = frozenset({"conv2d", "conv2d_relu"})
DEPTHWISE: Final = "conv2d_depthwise"


@dataclass(frozen=True, slots=True)
class Source:
    """What a map was made of: a map and what stands beside it, and how."""

    map: str
    beside: Use
    params: tuple[str, ...]
    attrs: Mapping[str, Any]
    # What else stands beside the map.
    behind: tuple[Use, ...] = ()


def may_remake(b: Builder) -> bool:
    """Whether maps are of a type that kernels make again."""
    return b.remakes_maps and (b.dtype == "bfloat16" or b.precision == "tf32")


def source_of(b: Builder, value: str) -> Source | None:
    """What the value is made of; None where it has other readers, or another maker.

    Of a value without a gradient nothing else reads the source backward: it stays itself.
    """
    op = b.makers.get(value)
    if not may_remake(b) or op is None:
        return None
    if not (b.has_one_reader(value) and b.needs_grad(value)):
        return None
    if op.kind in NORMALIZED:
        return normalized_source(b, op)
    gates = b.buffer_of[op.inputs[1]] if op.kind == GATED else ""
    if gates and not b.is_range(gates) and b.shape(value)[-1] % WORD == 0:
        return Source(b.input_of(op), Use(gates, exact=True), (), {"maker": "gate"})
    return None


def normalized_source(b: Builder, op: Op) -> Source:
    """What the output of a normalization was made of."""
    function, coefficient = op.attrs.get("function", ""), op.attrs.get("coefficient", 0.0)
    attrs = {"maker": "normalize", "function": function, "coefficient": coefficient}
    statistics = replace(whole(statistics_of(op)), exact=True)
    return Source(b.input_of(op), statistics, op.params[:2], attrs)


def remakes(b: Builder, op: Op, small: str, large: str, source: Source) -> bool:
    """Whether the kernel that sums over a convolution's larger map loads its source instead.

    In float32 that takes longer than to load a map that is stored (`MOST_CHANNELS_FLOAT32`).
    """
    if b.dtype == "float32" and op.inputs[0] not in b.made_by_readers:
        return False
    sides = sides_of(b, large), sides_of(b, small)
    pitches = [(b.pitch(each), b.pitch(small)) for each in (source.map, large)]
    return b.starts_words(source.map) and all(
        remakes_maps(*sides, filter_shape(b, op), **plan_settings(b, op), pitches=each)
        for each in pitches
    )


def lies_in_source(b: Builder, op: Op) -> bool:
    """Put the op's output where its source lies, if its reader makes it forward and backward."""
    source = source_of(b, op.output)
    if source is None or not _is_made_by(b, b.readers_of[op.output][0], source):
        return False
    b.put(op.output, source.map)
    b.made_by_readers.add(op.output)
    return True


def _is_made_by(b: Builder, reader: Op, source: Source) -> bool:
    """Whether a convolution, and the gradient of its weight, can load the source of its input."""
    value = reader.inputs[0]
    alike = b.buffers[source.map].shape == b.shape(value)  # a view may have another shape
    if reader.kind not in (*READERS, DEPTHWISE) or not alike or not b.starts_words(source.map):
        return False
    shape, settings = filter_shape(b, reader), plan_settings(b, reader)
    if reader.kind == DEPTHWISE:
        by = {name: source.attrs.get(name, "") for name in ("maker", "function")}
        pays: bool = makes_depthwise_input(shape, settings["stride"], settings["dilation"], **by)
        return pays
    if not pays_to_make(shape, source.attrs["maker"], settings["dtype"]):
        return False
    sides = _plane(b, value), _plane(b, reader.output)
    outer = b.width_of(reader.output)
    return all(
        suits(*sides, shape, **settings, pitches=(inner, outer))
        for suits in (makes_input, remakes_maps)
        for inner in (b.pitch(source.map), b.width_of(value))
    )


def makes_product(b: Builder, op: Op, map_: str) -> bool:
    """Whether the only reader of the product with gates can make it of a map that lies there."""
    value = op.output
    if not (b.has_one_reader(value) and b.needs_grad(value) and b.shape(value)[-1] % WORD == 0):
        return False
    source = Source(map_, Use(""), (), {"maker": "gate"})
    return _is_made_by(b, b.readers_of[value][0], source)


def _plane(b: Builder, value: str) -> tuple[int, int]:
    height, width = b.shape(value)[1:3]
    return height, width


def rounded_by_readers(b: Builder) -> frozenset[str]:
    """The ops whose output products alone make, rounded for them."""
    values = [each for each in b.made_by_readers if b.readers_of[each][0].kind in READERS]
    return frozenset(b.makers[each].name for each in values)


def source_read_by(b: Builder, op: Op) -> Source | None:
    """What a convolution makes its input of as it loads it; None where it loads the input."""
    value = op.inputs[0]
    return source_of(b, value) if value in b.made_by_readers else None


def made_by_of(a: Launch, params: Sequence[Tensor | None]) -> MadeBy:
    """What a launch makes its map by. `params` are those of the map's maker."""
    if a.attrs["maker"] == "gate":
        return Gated(a.reads[2].flatten(1))
    weight, bias = params
    normalized = Normalized(a.reads[2], weight, bias, a.attrs["function"], a.attrs["coefficient"])
    both = a.attrs["maker"] == "normalize gate"
    return Gated(a.reads[3].flatten(1), normalized) if both else normalized
