"""Calls of layer normalization."""

from collections.abc import Sequence

from torch.fx import Node

from .call import Call, Shape, UnsupportedCallError, axes_of, shape_of


def layer_norm(
    out: Shape,
    x: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Call:
    if len(normalized_shape) != 1 or axes_of(x)[-1] != len(out) - 1:
        raise UnsupportedCallError(
            f"layer_norm of {shape_of(x)} over {tuple(normalized_shape)}"
            " (it takes [N, F], or maps permuted to [N, H, W, C], over the last dimension)"
        )
    return Call("layer_norm", (x,), (weight, bias), {"eps": float(eps)}, axes_of(x))
