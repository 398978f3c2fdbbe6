"""Launches of loss.py, loss_grad.py and loss_elements.py to compile."""

from functools import partial

import torch
from torch import Tensor

from tests.support.offline import Case
from tvdnn.kernels.loss import cross_entropy as loss
from tvdnn.kernels.loss import cross_entropy_grad as loss_grad
from tvdnn.kernels.loss import per_element as loss_elements

PLAIN = {"ignore_index": -100, "smoothing": 0.0}
SMOOTHED = {"ignore_index": -100, "smoothing": 0.1}


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _cross_entropy(classes: int, *, weighted: bool = False) -> None:
    settings = SMOOTHED if weighted else PLAIN
    weight = _empty(classes + 1) if weighted else None
    logits = _empty(256, classes, dtype=torch.bfloat16)
    target, lse, total = _empty(256, dtype=torch.int64), _empty(256), _empty(2)
    terms = _empty(256, 2)
    loss.cross_entropy_rows(logits, target, weight, terms, lse, **settings)
    loss.loss_total(terms, total, total, mean=True, share=0.3)
    loss_grad.cross_entropy_grad(logits, target, weight, lse, total, total, logits, **settings)


def _pixels(classes: int, *, weighted: bool = False) -> None:
    settings = SMOOTHED if weighted else PLAIN
    weight = _empty(classes + 1) if weighted else None
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32")):
        logits, target = _empty(4, 8192, classes, dtype=dtype), _empty(4, 8192, dtype=torch.int64)
        total, partials = _empty(2), _empty(4, loss.pixel_splits(8192, classes), 2)
        loss.cross_entropy_pixels(logits, target, weight, partials, **settings)
        rows = logits.flatten(0, 1)
        operands = (rows, target.flatten(), weight, None, total, total, rows)
        loss_grad.cross_entropy_grad(*operands, **settings, precision=precision)


def _elements(function: str, *, weighted: bool = False) -> None:
    weight = _empty(64) if weighted else None
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32")):
        x, target = _empty(4, 32, 32, 64, dtype=dtype), _empty(4, 32, 32, 64)
        partials = _empty(4, loss_elements.element_splits(65536), 2)
        loss_elements.element_loss(x, target, weight, weight, partials, function=function)
        operands = (x, target, weight, weight, partials, partials, x)
        loss_elements.element_loss_grad(*operands, function=function, precision=precision)


CASES = [
    Case("cross-entropy", partial(_cross_entropy, 1000)),
    Case("cross-entropy of a vocabulary", partial(_cross_entropy, 50257)),
    Case("weights", partial(_cross_entropy, 1000, weighted=True)),
    Case("weights of a vocabulary", partial(_cross_entropy, 50257, weighted=True)),
    Case("pixels", partial(_pixels, 21)),
    Case("pixels in two classes", partial(_pixels, 2, weighted=True)),
    Case("pixels in many classes", partial(_pixels, 2048, weighted=True)),
    Case("squared errors", partial(_elements, "mse")),
    Case("binary cross-entropy", partial(_elements, "bce_with_logits", weighted=True)),
]
