"""Maps times or plus a value of each sample's channel."""

from typing import Any, Final

import torch

from bench.cases.case import KINDS, TYPES, KernelCase, Measured, at, checked, over
from bench.cases.launch import Launch, Settings, launching, per_sample
from bench.cases.operands import BF16, F32, U8, Operands, Shape
from tvdnn.kernels.norm.normalized_again import Normalized
from tvdnn.kernels.pointwise.channel_broadcast import FUNCTIONS, gate

WIDEST: Final = (256, 112, 112, 96)  # of EfficientNet's maps with gates
MAKERS: Final = ("", "silu")  # functions behind the normalization of a map that is made on load


def made_by(o: Operands, size: Shape, function: str | None) -> Settings:
    """A normalization with this function, if any."""
    if function is None:
        return {}
    statistics, weight, bias = o.randn(3, size[-1]), o.randn(size[-1]), o.randn(size[-1])
    return {"made_by": Normalized(statistics, weight, bias, function)}


def _gate(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    residual: bool = False,
    signs: bool = False,
    maker: str | None = None,
    **settings: Any,
) -> Launch:
    """With a `residual` added, with packed `signs`, of a map that is made by a `maker`."""
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype)
    gates = o.randn(size[0], size[-1], dtype=dtype)
    other = o.randn(*size, dtype=dtype).flatten(1, -2) if residual else None
    packed = o.out(*size[:-1], size[-1] // 8, dtype=U8).flatten(1, -2) if signs else None
    peer = None
    if other is None and maker is None:
        peer = per_sample(lambda: y, torch.mul, x, gates[:, None, None])
    operands = (x.flatten(1, -2), gates, y.flatten(1, -2), other, packed)
    return launching(gate, *operands, peer=peer, **made_by(o, size, maker), **settings)


MAPS, ONE = [(2, 784, 1, channels) for channels in (96, 63, 72, 300)], (1, 1, 1, 1)
WHOLE = [each for each in MAPS if each[-1] % 8 == 0]  # with channels that fill bytes of signs
SINGLE = at([ONE], over(dtype=[F32]))
ADDED = (
    {"residual": True},
    {"residual": True, "relu": True},
    {"residual": True, "relu": True, "signs": True},
)
MADE = over([{}, *ADDED], maker=MAKERS)
CASES = (
    KernelCase(
        gate,
        _gate,
        checked(function=FUNCTIONS, dtype=TYPES),
        (
            *at(MAPS, over(KINDS, function=FUNCTIONS)),
            *at(MAPS, over(KINDS, ADDED[:2])),
            *at(WHOLE, over(ADDED, maker=[None, *MAKERS])),
            *at(WHOLE, over(maker=MAKERS, dtype=TYPES)),
            *SINGLE,
        ),
        [Measured("gate", WIDEST)],
    ),
    KernelCase(gate, _gate, {str(each): each for each in (*ADDED, *MADE)}, odd=False),
)
