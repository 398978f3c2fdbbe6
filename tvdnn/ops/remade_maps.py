"""Maps that the weight gradient of their only reader makes again as it loads what made them.

A normalized or gated map that a pointwise convolution alone reads is read once more, backward, by
the gradient of the convolution's weight. That launch can read what the map was made of instead and
make the same bits, so that nothing keeps the map beyond the forward pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..graph import Use
from ..kernels.conv.grad_weight.launch import MadeBy
from ..kernels.conv.grad_weight.remade import Gated, Normalized
from .batch_norm import statistics_of
from .builder import Builder, whole
from .concat_views import WORD
from .operator import Launch

NORMALIZED: Final = frozenset({"batch_norm", "batch_norm_relu", "batch_norm_activation"})
GATED: Final = "gate_multiply"


@dataclass(frozen=True, slots=True)
class Source:
    """What a map was made of: a map and what stands beside it, and how."""

    map: str
    beside: Use
    params: tuple[str, ...]
    attrs: Mapping[str, Any]


def source_of(b: Builder, value: str) -> Source | None:
    """What the value is made of, in bfloat16; None where it has other readers, or another maker.

    Of a value without a gradient nothing else reads the source backward: it stays itself.
    """
    op = b.makers.get(value)
    if not b.remakes_maps or b.dtype != "bfloat16" or op is None:
        return None
    if not (b.has_one_reader(value) and b.needs_grad(value)):
        return None
    if op.kind in NORMALIZED:
        function = {"function": op.attrs.get("function", "")}
        attrs = {"maker": "normalize", **function, "coefficient": op.attrs.get("coefficient", 0.0)}
        return Source(b.input_of(op), whole(statistics_of(op)), op.params[:2], attrs)
    gates = b.buffer_of[op.inputs[1]] if op.kind == GATED else ""
    if gates and not b.is_range(gates) and b.shape(value)[-1] % WORD == 0:
        return Source(b.input_of(op), Use(gates), (), {"maker": "gate"})
    return None


def made_by_of(a: Launch) -> MadeBy | None:
    """What a launch makes its map by."""
    maker = a.attrs.get("maker")
    if maker is None:
        return None
    if maker == "gate":
        return Gated(a.reads[2].flatten(1))
    weight, bias = a.params
    return Normalized(a.reads[2], weight, bias, a.attrs["function"], a.attrs["coefficient"])
