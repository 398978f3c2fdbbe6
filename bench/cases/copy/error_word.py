"""The error word that stops the updates of a step."""

import torch

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import Operands, Shape
from tvdnn.kernels.copy.error_word import raise_flag


def _raise_flag(o: Operands, size: Shape, value: int = 1) -> Launch:
    word = o.full(value, 1, dtype=torch.int32)
    return launching(raise_flag, word, o.updated(o.full(0, 1)))


CASES = (KernelCase(raise_flag, _raise_flag, compiled=[At(())]),)
