"""Local response normalization; its gradient computes the scales again from the input."""

from torch.fx import Node

from ..graph import Op, Use
from .builder import Builder
from .operator import Operator, launches
from .passes import forward
from .row_tiles import tiles_by_pixel
from .traced_op import Shape, TracedOp


def local_response_norm(
    out: Shape, x: Node, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> TracedOp:
    attrs = {"size": size, "alpha": float(alpha), "beta": float(beta), "k": float(k)}
    return TracedOp("local_response_norm", (x,), (), attrs)


def backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(b.input_of(op)), Use(dy)), (Use(dx),))


_SETTINGS = ("size", "alpha", "beta", "k")
LOCAL_RESPONSE_NORM = Operator(
    "local_response_norm",
    forward,
    backward,
    {
        "forward": launches("local_response_norm", *_SETTINGS),
        "grad_input": launches("local_response_norm_grad", *_SETTINGS),
    },
    saves={"input"},
    row_tiles=tiles_by_pixel,
    vdnn="all",
    functions={"local_response_norm": local_response_norm},
    modules=("LocalResponseNorm",),
)
