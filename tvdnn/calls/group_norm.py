"""Calls of group and instance normalization."""

from torch.fx import Node

from .call import Call, Shape, UnsupportedCallError
from .reshape import as_rows, of_rows


def group_norm(
    out: Shape,
    x: Node,
    num_groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Call:
    attrs = {"groups": num_groups, "eps": float(eps)}
    if len(out) == 3:
        return of_rows(out, Call("group_norm", (as_rows(x),), (weight, bias), attrs))
    return Call("group_norm", (x,), (weight, bias), attrs)


def instance_norm(
    out: Shape,
    x: Node,
    running_mean: Node | None = None,
    running_var: Node | None = None,
    weight: Node | None = None,
    bias: Node | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Call:
    if running_mean is not None or not use_input_stats:
        raise UnsupportedCallError(
            "instance_norm with running statistics (it takes track_running_stats=False)"
        )
    return group_norm(out, x, out[1], weight, bias, eps)
