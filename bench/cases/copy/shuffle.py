"""Shuffled channels."""

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import BY_TYPE, TYPES, At, KernelCase, Measured, at, checked, over
from bench.cases.launch import Launch, launching, nchw, per_sample
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.copy.shuffle import shuffle_channels

STAGES: Final = {  # maps of ShuffleNet-v2 x2.0
    "256x28x28x244": (256, 28, 28, 244),
    "256x14x14x488": (256, 14, 14, 488),
    "256x7x7x976": (256, 7, 7, 976),
}


def _shuffle(o: Operands, size: Shape, dtype: torch.dtype = BF16, groups: int = 0) -> Launch:
    """`groups`: by default one for each channel."""
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype)
    groups = groups or size[-1]

    def shuffled(maps: Tensor) -> Tensor:
        return functional.channel_shuffle(maps, groups)

    peer = per_sample(lambda: nchw(y), shuffled, nchw(x))
    return launching(shuffle_channels, x, y, groups=groups, peer=peer)


def _halves(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, inverse: bool = False, beside: Shape = ()
) -> Launch:
    """Twice the channels of `size`, of which halves are interleaved or taken apart."""
    *pixels, half = size
    x = o.randn(*pixels, 2 * half, dtype=dtype, beside=beside)
    y = o.out(*pixels, 2 * half, dtype=dtype, beside=beside)
    return launching(shuffle_channels, x, y, groups=half if inverse else 2)


WIDE = [(2, 28, 28, 24), (2, 28, 28, 122), (2, 14, 14, 244), (2, 7, 7, 488)]
CASES = (
    KernelCase(
        shuffle_channels,
        _shuffle,
        BY_TYPE | {"in two": {"groups": 1}},
        at([(2, 28, 28, 116), (2, 28, 28, 244), (2, 7, 7, 976), (1, 1, 1, 2)], over(groups=[2])),
        [
            Measured("shuffle_channels", size, {"groups": 2}, small=(3, 9, 9, 48), title=title)
            for title, size in STAGES.items()
        ],
    ),
    KernelCase(
        shuffle_channels,
        _halves,
        checked(inverse=[False, True], dtype=TYPES, beside=[(), (8, 16)]),
        (
            *at(WIDE, over(inverse=[False, True])),
            *at([(2, 28, 28, 122)], over(inverse=[False, True], dtype=TYPES, beside=[(122, 244)])),
            At((1, 1, 1, 1)),
        ),
    ),
)
