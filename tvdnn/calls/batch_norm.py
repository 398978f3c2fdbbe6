"""Calls of batch normalization."""

from torch.fx import Node

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
