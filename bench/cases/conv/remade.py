"""Maps that pointwise convolutions make again as they load what they were made of."""

from collections.abc import Callable
from typing import Final

from bench.cases.conv.layers import Layer, Tensors
from bench.cases.launch import Settings
from bench.cases.operands import Operands
from tvdnn.kernels.conv.remade import Gated
from tvdnn.kernels.norm.normalized_again import Normalized

REMADE: Final = (  # of every tile in bfloat16
    *(Layer(56, 64, 256, 1), Layer(56, 144, 24, 1), Layer(28, 128, 512, 1)),
    *(Layer(56, 256, 256, 1), Layer(112, 32, 16, 1), Layer(14, 256, 1024, 1)),
    *(Layer(14, 672, 112, 1), Layer(7, 512, 2048, 1), Layer(28, 40, 24, 1)),
    Layer(28, 104, 128, 1),
)
REMADE_IN_TF32: Final = (  # of every tile in TF32
    *(Layer(56, 64, 256, 1), Layer(56, 144, 24, 1), Layer(14, 672, 112, 1)),
    *(Layer(28, 128, 512, 1), Layer(28, 40, 24, 1), Layer(7, 960, 160, 1)),
)
MAKERS: Final = ("relu", "relu6", "silu", "gate")
BOTH: Final = ("gated relu", "gated silu")  # normalized and gated, for gradients of weights alone


def made_by_of(o: Operands, t: Tensors, maker: str, suits: Callable[..., bool]) -> Settings:
    """Gates, or a normalization with a function of this name; none where kernels make no maps."""
    samples, *_, channels = t.x.shape
    layer = {**t.settings, "dtype": t.x.dtype, "pitches": t.layer.pitches}
    if not maker or not suits(*t.layer.sides, t.layer.shape, **layer):
        return {}
    *gated, function = maker.split()
    statistics, affine = o.randn(3, channels), (o.randn(channels), o.randn(channels))
    normalized = None if maker == "gate" else Normalized(statistics, *affine, function)
    if gated or normalized is None:
        gates = o.randn(samples, channels, dtype=t.x.dtype)
        return {"made_by": Gated(gates, normalized)}
    return {"made_by": normalized}
