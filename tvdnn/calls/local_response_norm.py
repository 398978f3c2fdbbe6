"""Calls of local response normalization."""

from torch.fx import Node

from .call import Call, Shape


def local_response_norm(
    out: Shape, x: Node, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Call:
    attrs = {"size": size, "alpha": float(alpha), "beta": float(beta), "k": float(k)}
    return Call("local_response_norm", (x,), (), attrs)
