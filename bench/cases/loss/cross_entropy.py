"""Cross-entropy of rows and of pixels, and the sum of terms."""

from typing import Any, Final

import torch

from bench.cases.case import TYPES, At, KernelCase, at, checked, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape, padding_beside
from tvdnn.kernels.loss.cross_entropy import (
    cross_entropy_pixels,
    cross_entropy_rows,
    loss_total,
    pixel_splits,
    with_sum,
)

PLAIN: Final = {"ignore_index": -100, "smoothing": 0.0}
SMOOTHED: Final = {"ignore_index": -100, "smoothing": 0.1}


def weights_and_options(
    o: Operands, classes: int, weighted: bool = False, **settings: Any
) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """Weights of classes with their sum, where the loss is `weighted`, and its options."""
    weights = with_sum(o.randn(classes).abs_()) if weighted else None
    return weights, {**(SMOOTHED if weighted else PLAIN), **settings}


def _rows(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    rows, classes = size[0], size[-1]
    logits, target = o.randn(rows, classes, dtype=dtype), o.integers(classes, rows)
    weights, options = weights_and_options(o, classes, **settings)
    operands = (logits, target, weights, o.out(rows, 2), o.out(rows))
    return launching(cross_entropy_rows, *operands, **options)


def _pixels(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, padded: bool = False, **settings: Any
) -> Launch:
    place = padding_beside(size[-1], padded=padded)
    logits = o.randn(*size, dtype=dtype, **place).flatten(1, -2)
    samples, pixels, classes = logits.shape
    target = o.integers(classes, samples, pixels)
    weights, options = weights_and_options(o, classes, **settings)
    shape = (samples, pixel_splits(pixels, classes), 2)
    partials = o.out(*shape, compared=lambda sums: sums.sum(1))
    return launching(cross_entropy_pixels, logits, target, weights, partials, **options)


def _total(
    o: Operands, size: Shape, mean: bool = True, share: float = 0.3, before: bool = True
) -> Launch:
    """`before`: with a total of terms that came before."""
    partials = o.randn(size[0], 2).abs_()
    earlier = o.randn(2).abs_() if before else None
    return launching(loss_total, partials, earlier, o.out(2), mean=mean, share=share)


ROWS, ONE = [(256, 1000), (256, 50257)], (1, 1)
MAPS = ((4, 8192, 1, 21), (4, 8192, 1, 2), (4, 8192, 1, 2048))
PADDED = (4, 64, 64, 21)
SINGLE: dict[str, Any] = {"dtype": F32, "weighted": True, "ignore_index": 1, "smoothing": 1}
BOTH = checked(weighted=[False, True], dtype=TYPES)
CASES = (
    KernelCase(
        cross_entropy_rows,
        _rows,
        BOTH,
        (*at(ROWS, over(weighted=[False, True])), At(ONE, SINGLE)),
    ),
    KernelCase(
        cross_entropy_pixels,
        _pixels,
        BOTH,
        (
            *(
                At(size, {"dtype": dtype, "weighted": size[-1] != 21})
                for size in MAPS
                for dtype in TYPES
            ),
            *at([PADDED], over(dtype=TYPES, weighted=[False, True], padded=[True])),
            At((1, 1, 1), SINGLE),
        ),
    ),
    KernelCase(
        loss_total,
        _total,
        checked(mean=[True, False], before=[True, False]),
        (At((256,)), At(ONE, {"mean": False, "share": 1})),
    ),
)
