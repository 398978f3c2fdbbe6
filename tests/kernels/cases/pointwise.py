"""Launches of arithmetic.py, gate.py and softmax.py to compile."""

from functools import partial

import torch
from torch import Tensor

from tests.support.offline import Case
from tvdnn.kernels.pointwise import arithmetic, softmax
from tvdnn.kernels.pointwise import channel_broadcast as gate

KINDS = ((torch.bfloat16, "ieee"), (torch.float32, "tf32"))


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _arithmetic() -> None:
    for dtype, precision in KINDS:
        x = _empty(2, 9, 9, 64, dtype=dtype)
        arithmetic.affine(x, x, scale=2, shift=0.5, precision=precision)
        arithmetic.add_multiple(x, x, x, scale=-1, precision=precision)
        arithmetic.multiply(x, x, x, precision=precision)
        arithmetic.multiply_grad(x, x, x, x, x, precision=precision)


def _gates(channels: int) -> None:
    for dtype, precision in KINDS:
        x, gates = _empty(2, 784, channels, dtype=dtype), _empty(2, channels, dtype=dtype)
        sums = _empty(2, gate.gate_slices(784, channels), channels)
        for function in gate.FUNCTIONS:
            gate.gate(x, gates, x, function=function, precision=precision)
        gate.gate_grad(x, gates, x, x, sums, precision=precision)
        gate.gate_grad(None, None, x, None, sums)
        gate.sum_slices(sums, gates, precision=precision)


def _softmax(channels: int) -> None:
    for dtype, precision in KINDS:
        x = _empty(784, channels, dtype=dtype)
        for function in softmax.FUNCTIONS:
            settings = {"function": function, "precision": precision}
            softmax.softmax(x, x, **settings)
            softmax.softmax_grad(x, x, x, **settings)


CASES = [
    Case("arithmetic", _arithmetic),
    Case("gates", partial(_gates, 96)),
    Case("softmax", partial(_softmax, 21)),
    Case("softmax of many", partial(_softmax, 16384)),
    Case("gates of odd channels", partial(_gates, 63)),
]
