"""Kernels that move bytes, on tensors of over 100 MB, beside torch's own."""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Final

import torch

from bench.cases import batch_norm, maps, params, pointwise, rows
from bench.cases.case import Calls, Case
from bench.cases.tensors import Shape
from bench.timing import DTYPES

FIRST: Final = (256, 224, 224, 64)  # VGG-16's largest map
ALEXNET: Final = (1024, 55, 55, 64)
LAST: Final = (1024, 14, 14, 512)
GATED: Final = (256, 112, 112, 96)
PIXELS: Final = (64, 256, 256, 21)
INNER: Final = (64, 64, 64, 256)
WIDE: Final = (256, 56, 56, 256)  # ResNet-50's widest map, and its first
STEM: Final = (256, 112, 112, 64)
IMAGES: Final = (256, 3, 224, 224)
FC6: Final = (4096, 25088)  # VGG-16's largest weight
PARTIALS: Final = (11, 512, 3, 3, 512)
Listed = Iterator[tuple[str, Shape, float, Callable[[], Calls]]]


def cases(dtype: str) -> Iterator[Case]:
    """All of them; maps in `dtype`."""
    kind = DTYPES[dtype]
    for kernel, shape, nbytes, make in (
        *_maps(kind),
        *_pools(kind),
        *_pointwise(kind),
        *_rows(kind),
        *_parameters(),
    ):
        text = "x".join(str(size) for size in shape)
        yield Case(kernel, text, dtype, 0.0, nbytes, lambda _, make=make: make(), shape[0])


def _maps(kind: torch.dtype) -> Listed:
    """Over feature maps [N, H, W, C]; the numbers of maps that are read and written."""
    moved: tuple[tuple[str, Shape, float, Callable[..., Calls]], ...] = (
        ("relu", FIRST, 2, maps.relu),
        ("relu_grad", FIRST, 3, maps.relu_grad),
        ("add", FIRST, 3, maps.sum_of_two),
        ("conv2d_grad_bias", FIRST, 1, maps.bias_grad),
        ("adaptive_avg_pool2d", LAST, 1.25, maps.adaptive),
        ("batch_norm", WIDE, 3, batch_norm.normalized),
        ("batch_norm", STEM, 3, batch_norm.normalized),
        ("batch_norm_grad", WIDE, 5, batch_norm.gradient),
        ("batch_norm_grad", STEM, 5, batch_norm.gradient),
        ("local_response_norm", ALEXNET, 2, maps.lrn),
        ("local_response_norm_grad", ALEXNET, 3, maps.lrn_grad),
    )
    for kernel, shape, count, make in moved:
        yield kernel, shape, count * kind.itemsize * prod(shape), partial(make, shape, kind)
    nbytes = (4 + kind.itemsize) * prod(IMAGES)
    yield "stage", IMAGES, nbytes, partial(maps.stage, IMAGES, kind)


def _pools(kind: torch.dtype) -> Listed:
    """Max pooling and its gradient, from the map and from codes of 2 or 4 bits."""
    for shape, size, bits in ((FIRST, 2, 2), (ALEXNET, 3, 4)):
        window = maps.windows(size)
        pooled = prod(maps.pooled(shape, window))
        moved, whole = kind.itemsize * (prod(shape) + pooled), kind.itemsize * prod(shape)
        for kernel, nbytes, make in (
            ("max_pool2d", moved, maps.pooling),
            ("max_pool2d_codes", moved + pooled * bits / 8, maps.pooling_codes),
            ("max_pool2d_grad", moved + whole, maps.pooling_grad),
            ("max_unpool2d", moved + pooled * bits / 8, maps.unpooling),
        ):
            yield f"{kernel} {size}x{size}", shape, nbytes, partial(make, shape, kind, window)


def _pointwise(kind: torch.dtype) -> Listed:
    """Arithmetic, gates (EfficientNet's widest maps), softmax of pixels, U-Net's upsampling."""
    moved: tuple[tuple[str, Shape, float, Callable[..., Calls]], ...] = (
        ("multiply", FIRST, 3, pointwise.multiply),
        ("gate", GATED, 2, pointwise.gated),
        ("gate_grad", GATED, 3, pointwise.gate_grad),
        ("softmax", PIXELS, 2, pointwise.softmaxed),
    )
    for kernel, shape, count, make in moved:
        yield kernel, shape, count * kind.itemsize * prod(shape), partial(make, shape, kind)
    resizing = (("resize", pointwise.doubled), ("resize_grad", pointwise.doubled_grad))
    for kernel, resized in resizing:
        for mode in ("nearest", "bilinear"):
            nbytes = 5 * kind.itemsize * prod(INNER)
            yield f"{kernel} {mode}", INNER, nbytes, partial(resized, INNER, kind, mode)


def _rows(kind: torch.dtype) -> Listed:
    """Over matrices [N, F]."""
    wide = (32768, 4096)
    yield "dropout", wide, 2 * kind.itemsize * prod(wide), partial(rows.dropped, wide, kind)
    for shape in ((65536, 1000), (2048, 50257)):
        nbytes = 3 * kind.itemsize * prod(shape)
        yield "cross_entropy and gradient", shape, nbytes, partial(rows.cross_entropy, shape, kind)


def _parameters() -> Listed:
    """Over float32 parameters; the numbers of them that are read and written."""
    moved: tuple[tuple[str, Shape, float, Callable[[Shape], Calls]], ...] = (
        ("sgd", FC6, 5, params.sgd),
        ("adamw", FC6, 7, params.adamw),
        ("cast", FC6, 1.5, params.cast),
        ("sum_partials", PARTIALS, 12 / 11, params.sum_partials),
        ("sgd_partials", PARTIALS, 15 / 11, params.sgd_partials),
    )
    for kernel, shape, count, make in moved:
        yield kernel, shape, 4 * count * prod(shape), partial(make, shape)
