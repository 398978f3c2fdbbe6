"""Layouts and types of maps, and sums of two."""

from typing import Final

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, TYPES, At, KernelCase, Measured, at, checked
from bench.cases.launch import (
    EXACT_SAMPLES,
    Launch,
    Peer,
    first_samples,
    launching,
    nchw,
    per_sample,
)
from bench.cases.operands import BF16, F32, Operands, Shape
from bench.cases.shapes import FC6, VGG16_MAP
from tvdnn.kernels.copy.layout import add, cast, stage, unstage

IMAGES: Final = (256, 224, 224, 3)


def _stage(o: Operands, size: Shape, dtype: torch.dtype = BF16, strided: bool = False) -> Launch:
    """The caller's float32 images into maps; `strided`: part of larger images."""
    samples, height, width, channels = size
    if strided:
        larger = o.randn(samples, 2 * channels, 2 * height, 2 * width)
        x = larger[:, :channels, ::2, ::2]
    else:
        x = o.randn(samples, channels, height, width)
    y = o.out(*size, dtype=dtype)
    peer = Peer(
        lambda: nchw(y),
        lambda: x.to(dtype, memory_format=torch.channels_last),
        lambda: x[:EXACT_SAMPLES].double(),
        first_samples,
    )
    return launching(stage, x, y, peer=peer)


def _unstage(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    y, (samples, height, width, channels) = o.randn(*size, dtype=dtype), size
    return launching(unstage, y, o.out(samples, channels, height, width))


def _cast(o: Operands, size: Shape) -> Launch:
    wide, narrow = o.randn(*size), o.out(*size, dtype=BF16)

    def narrowed(values: Tensor) -> Tensor:
        return values.bfloat16() if values.dtype == F32 else values

    return launching(cast, wide, narrow, peer=per_sample(lambda: narrow, narrowed, wide))


def _add(o: Operands, size: Shape, dtype: torch.dtype = BF16, beside: Shape = ()) -> Launch:
    """With channels `beside` it, the first map is a range of a wider one. The sum is another."""
    a, b = o.randn(*size, dtype=dtype, beside=beside), o.randn(*size, dtype=dtype)
    out = o.out(*size, dtype=dtype, beside=beside)
    return launching(add, a, b, out, peer=per_sample(lambda: out, torch.add, a, b))


def _ranges() -> list[At]:
    return [
        At((2, 28, 28, channels), {"dtype": dtype, "beside": (channels, 2 * channels)})
        for channels in (29, 32, 256)
        for dtype in TYPES
    ]


IMAGE_SIZES, ONE = [(2, 224, 224, 3), (2, 224, 224, 64)], (1, 1, 1, 1)
CASES = (
    KernelCase(
        stage,
        _stage,
        checked(dtype=TYPES, strided=[False, True]),
        (*at(IMAGE_SIZES), At(ONE, {"dtype": F32, "strided": True})),
        [Measured("stage", IMAGES, title="256x3x224x224")],
    ),
    KernelCase(unstage, _unstage, BY_TYPE, at(IMAGE_SIZES)),
    KernelCase(
        cast,
        _cast,
        compiled=at([(8192,)]),
        measured=[Measured("cast", FC6, small=(4, 40), typed=False)],
    ),
    KernelCase(
        add,
        _add,
        checked(dtype=TYPES, beside=[(), (8, 16)]),
        (At((8192,)), *_ranges(), At(ONE, {"dtype": F32})),
        [Measured("add", VGG16_MAP)],
    ),
)
