"""Calls of batch normalization, and what a layer that counts its batches calls."""

from typing import Any

from torch import Tensor
from torch.fx import Node
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from .call import Call, Shape
from .reshape import as_rows, of_rows


def batch_norm(
    out: Shape,
    x: Node,
    running_mean: Node | None,
    running_var: Node | None,
    weight: Node | None = None,
    bias: Node | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    num_batches_tracked: Node | None = None,
) -> Call:
    attrs = {"training": training, "momentum": momentum, "eps": float(eps)}
    state = (running_mean, running_var, num_batches_tracked if training else None)
    if len(out) == 3:
        return of_rows(out, Call("batch_norm", (as_rows(x),), (weight, bias), attrs, state=state))
    return Call("batch_norm", (x,), (weight, bias), attrs, state=state)


def counted_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    num_batches_tracked: Tensor | None,
) -> Tensor:
    """What a layer asks of torch's function, which does not know the number of batches.

    Without a momentum the running statistics become the mean over all batches.
    """
    state, affine = (running_mean, running_var), (weight, bias)
    if has_torch_function((x,)):
        given = (x, *state, *affine, training, momentum, eps, num_batches_tracked)
        handle: Any = handle_torch_function
        result: Tensor = handle(counted_batch_norm, (x,), *given)
        return result
    if num_batches_tracked is not None:
        num_batches_tracked += 1
        if momentum is None and not x.is_meta:
            momentum = 1.0 / float(num_batches_tracked)
    return functional.batch_norm(x, *state, *affine, training, momentum or 0.0, eps)
