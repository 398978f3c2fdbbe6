"""Launches of broadcast.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.pointwise.broadcast import (
    FUNCTIONS,
    broadcast,
    broadcast_grad,
    broadcast_grad_sums,
    sum_slices_of,
)


def _broadcast(function: str, dtype: torch.dtype, precision: str) -> None:
    a = torch.empty(2, 28, 28, 96, dtype=dtype, device="meta")
    for shape in ((2, 1, 1, 96), (2, 28, 28, 1), (1, 1, 1, 1)):
        narrow = torch.empty(shape, dtype=dtype, device="meta")
        b, kept = narrow.expand(a.shape), tuple(size > 1 for size in shape[1:])
        columns = narrow[0].numel()
        sums = torch.empty(2, sum_slices_of(a[0].numel() // columns, columns), columns)
        broadcast(a, b, a, function=function, scale=2, precision=precision)
        for first in (True, False):
            settings = {"function": function, "first": first}
            broadcast_grad(a, a, b, a, **settings, precision=precision)
            broadcast_grad_sums(a, a, b, sums.to("meta"), **settings, kept=kept)


CASES = [
    *(
        Case(f"{name} of operands", partial(_broadcast, name, torch.bfloat16, "ieee"))
        for name in FUNCTIONS
    ),
    Case("quotients in float32", partial(_broadcast, "divide", torch.float32, "tf32")),
]
