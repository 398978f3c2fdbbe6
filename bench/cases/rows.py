"""Dropout and cross-entropy over matrices [N, F] beside torch's own."""

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import Calls
from bench.cases.tensors import EXACT_SAMPLES, Shape, few, poisoned, randn
from tvdnn.kernels.loss import cross_entropy as loss
from tvdnn.kernels.loss import cross_entropy_grad as loss_grad
from tvdnn.kernels.pointwise import dropout


def dropped(shape: Shape, kind: torch.dtype) -> Calls:
    x, y = randn(shape, kind), poisoned(shape, kind)
    wanted = torch.empty_like(x)
    seed = torch.ones(1, dtype=torch.int64)
    drawn = {"p": 0.5, "op_id": 1, "first_sample": 0}

    def own() -> Tensor:
        dropout.dropout(x, y, seed, **drawn)
        return y

    def exact() -> Tensor:
        few = slice(EXACT_SAMPLES)
        dropout.dropout_reference(x[few], wanted[few], seed, **drawn)
        return wanted[few].double()

    def peer() -> Tensor:
        return functional.dropout(x, 0.5)

    return Calls(own, peer, exact, few, same_numbers=False)


def cross_entropy(shape: Shape, kind: torch.dtype) -> Calls:
    """The mean loss, and its gradient, which is compared."""
    logits, gradient = randn(shape, kind), poisoned(shape, kind)
    target = torch.randint(0, shape[1], shape[:1])
    terms, lse, total = torch.empty(shape[0], 2), torch.empty(shape[0]), torch.empty(2)
    one, options = torch.ones(1), {"ignore_index": -100, "smoothing": 0.0}
    leaf = logits.detach().requires_grad_()

    def own() -> Tensor:
        loss.cross_entropy_rows(logits, target, None, terms, lse, **options)
        loss.loss_total(terms, None, total, mean=True, share=1.0)
        operands = (logits, target, None, lse, total, one)
        loss_grad.cross_entropy_grad(*operands, gradient, **options)
        return gradient

    def peer() -> Tensor:
        return torch.autograd.grad(functional.cross_entropy(leaf, target), leaf)[0]

    def exact() -> Tensor:
        wide = logits[:EXACT_SAMPLES].double()
        hot = functional.one_hot(target[:EXACT_SAMPLES], shape[1])
        return (wide.softmax(1) - hot) / shape[0]

    return Calls(own, peer, exact, few)
