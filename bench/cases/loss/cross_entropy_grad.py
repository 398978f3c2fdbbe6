"""The gradient of cross-entropy."""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import KINDS, TYPES, At, KernelCase, Measured, at, checked, over
from bench.cases.launch import EXACT_SAMPLES, Call, Launch, Peer, first_samples, launching
from bench.cases.loss.cross_entropy import MAPS, PADDED, PLAIN, ROWS, weights_and_options
from bench.cases.operands import BF16, F32, Operands, Shape, padding_beside
from tvdnn.kernels.loss.cross_entropy import cross_entropy_rows, loss_total
from tvdnn.kernels.loss.cross_entropy_grad import cross_entropy_grad


def _grad(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, kept: bool = True, **settings: Any
) -> Launch:
    """`kept`: with the logarithms that the forward pass left."""
    rows, classes = prod(size[:-1]), size[-1]
    place = padding_beside(classes, **settings)
    logits, target = o.randn(rows, classes, dtype=dtype, **place), o.integers(classes, rows)
    weights, options = weights_and_options(o, classes, **settings)
    lse = _logarithms(o, logits) if kept else None
    total, control = o.full(2.0, 2), o.full(0.5, 1)
    dlogits = o.out(rows, classes, dtype=dtype, **place)
    operands = (logits, target, weights, lse, total, control, dlogits)
    return launching(cross_entropy_grad, *operands, **options)


def _logarithms(o: Operands, logits: Tensor) -> Tensor:
    return logits.float().logsumexp(1) if o.holds_values else o.randn(len(logits))


def _mean_loss(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    """The mean loss and its gradient, which is compared."""
    logits, target = o.randn(*size, dtype=dtype), o.integers(size[1], size[0])
    terms, lse, total = o.out(size[0], 2), o.out(size[0]), o.out(2)
    gradient = o.out(*size, dtype=dtype)
    behind = (logits, target, None, lse, total, o.full(1.0, 1), gradient)
    calls = (
        Call(cross_entropy_rows, (logits, target, None, terms, lse), PLAIN),
        Call(loss_total, (terms, None, total), {"mean": True, "share": 1.0}),
        Call(cross_entropy_grad, behind, PLAIN),
    )
    leaf = logits.detach().requires_grad_()

    def run() -> Tensor:
        return torch.autograd.grad(functional.cross_entropy(leaf, target), leaf)[0]

    def exact() -> Tensor:
        wide = logits[:EXACT_SAMPLES].double()
        hot = functional.one_hot(target[:EXACT_SAMPLES], size[1])
        return (wide.softmax(1) - hot) / size[0]

    peer = Peer(lambda: gradient, run, exact, first_samples)
    return Launch(calls, peer, scratch=(terms, lse))


SINGLE: dict[str, Any] = {"dtype": F32, "weighted": True, "ignore_index": 1, "smoothing": 1}
CASES = (
    KernelCase(
        cross_entropy_grad,
        _grad,
        checked(weighted=[False, True], kept=[True, False], dtype=TYPES),
        (
            *at(ROWS, over(weighted=[False, True])),
            *(
                At(size, {**each, "weighted": size[-1] != 21, "kept": False})
                for size in MAPS
                for each in KINDS
            ),
            *at([PADDED], over(KINDS, kept=[False], weighted=[False, True], padded=[True])),
            At((1, 1), SINGLE),
        ),
        [
            Measured("cross_entropy and gradient", (65536, 1000), {}, (4, 40), make=_mean_loss),
            Measured("cross_entropy and gradient", (2048, 50257), {}, (4, 40), make=_mean_loss),
        ],
    ),
)
