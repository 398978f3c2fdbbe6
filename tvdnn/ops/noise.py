"""Maps of random numbers, which come from seed and place: a step that reads one twice has it twice.

The op reads a map for its number of samples alone, and hands no gradient on.
"""

from torch.fx import Node

from ..graph import Op
from ..graph.network import channels_last_axes
from .builder import Builder
from .operator import Launch, Operator
from .passes import forward
from .traced_op import Shape, TracedOp


def random_map(
    out: Shape,
    x: Node,
    size: Shape,
    distribution: str,
    p: float,
    scale: float,
    shift: float,
) -> TracedOp:
    attrs = {"distribution": distribution, "p": p, "scale": scale, "shift": shift}
    return TracedOp("noise", (x,), (), attrs, channels_last_axes(len(out)))


def _no_gradient(b: Builder, op: Op) -> None:
    raise AssertionError(f"{op.name} has no gradient")


def _run(a: Launch) -> None:
    settings = a.settings("distribution", "p", "scale", "shift", "op_id")
    settings |= {"precision": a.stored, "first_sample": a.first_sample}
    a.kernels.noise(a.writes[0], a.control.seed, **settings)


NOISE = Operator(
    "noise",
    forward,
    _no_gradient,
    {"forward": _run},
    functions={"random_map": random_map},
    takes_rows=True,
    draws=True,
)
