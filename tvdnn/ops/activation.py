"""relu, in place where nothing else reads its input; its gradient needs the output's sign alone.

A ReLU inside a fused op takes its gradient masked: from the only reader of what it leaves, or else
by a pass of the op's own.
"""

from ..graph import Kind, Need, Op, Use
from .builder import Builder
from .definition import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.home[op.output]),))


def backward(b: Builder, op: Op) -> None:
    reads = (Use(b.home[op.output], need=Need.SIGN), Use(b.grad_of(op)))
    b.add_pass(op, "grad_input", reads, (Use(b.next_grad(op)),))


def behind_relu(b: Builder, op: Op) -> str:
    """The buffer with the gradient of what the ReLU inside a fused op takes."""
    dy = b.grad_of(op)
    if op.output in b.masked:
        return dy
    masked = dy if not b.is_shared(dy) else b.add_map(f"masked {dy}", b.shape(op.output), Kind.GRAD)
    b.add_pass(op, "mask", (Use(b.home[op.output], need=Need.SIGN), Use(dy)), (Use(masked),))
    return masked


def _run_forward(a: Launch) -> None:
    a.kernels.relu(a.reads[0], a.writes[0])


def run_mask(a: Launch) -> None:
    """Zero a gradient where the output is not above zero."""
    a.kernels.relu_grad(a.reads[0], a.reads[1], a.writes[0])


RELU = OpDef(
    kind="relu",
    forward=forward,
    backward=backward,
    roles={"forward": _run_forward, "grad_input": run_mask},
    saves=frozenset({"output"}),
    elementwise=True,
)
