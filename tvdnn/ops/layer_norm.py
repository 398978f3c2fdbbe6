"""Layer normalization. Its gradient computes the statistics again from the input.

Backward leaves sums of every sample, which add up to the parameters' gradients.
"""

from collections.abc import Sequence

from torch.fx import Node

from ..graph import Op, Use
from ..kernels.norm.layer_norm import layer_norm_chunks
from .builder import Builder
from .operator import Launch, Operator
from .passes import forward_by_pixel
from .reshape_translator import by_last
from .sample_sums import SAMPLE_SUMS, add_grad_input, add_param_grads, add_sums, grad_and_sums
from .traced_op import Shape, TracedOp, UnsupportedCallError, shape_of


def layer_norm(
    out: Shape,
    x: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> TracedOp:
    if len(normalized_shape) != 1 or len(out) < 2:
        raise UnsupportedCallError(
            f"layer_norm of {shape_of(x)} over {tuple(normalized_shape)} (it takes the last"
            " dimension of [N, ..., F])"
        )
    return by_last(out, x, TracedOp("layer_norm", (), (weight, bias), {"eps": float(eps)}))


def backward(b: Builder, op: Op) -> None:
    reads = Use(b.input_of(op)), Use(b.grad_of(op))
    trains = any(map(b.needs_param_grad, op.params))
    sums = add_sums(b, op, layer_norm_chunks, 2) if trains else ""
    add_grad_input(b, op, sums, reads, op.params[:1])
    if sums:
        add_param_grads(b, op, sums)


def _run_forward(a: Launch) -> None:
    x, y = map(a.by_pixel, (*a.reads, *a.writes))
    a.kernels.layer_norm(x, *a.params, y, **a.settings("eps"), precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    operands = (*map(a.by_pixel, a.reads), a.params[0], *grad_and_sums(a))
    a.kernels.layer_norm_grad(*operands, **a.settings("eps"), precision=a.stored)


LAYER_NORM = Operator(
    "layer_norm",
    forward_by_pixel,
    backward,
    {"forward": _run_forward, "grad_input": _run_grad_input, **SAMPLE_SUMS},
    saves={"input"},
    functions={"layer_norm": layer_norm},
    modules=("LayerNorm",),
)
