"""Launches to compile, from every kernel's case."""

from functools import partial

import torch

from bench.cases.case import At, KernelCase, kernel_cases
from bench.cases.operands import Operands
from bench.offline.compiler import Case


def _launch(case: KernelCase, at: At) -> None:
    case.make(Operands(torch.device("meta")), at.size, **at.settings).run()


def _case(case: KernelCase, at: At) -> Case:
    sides = "x".join(map(str, at.size))
    settings = (f"{name}={value}" for name, value in at.settings.items())
    return Case(" ".join((case.name, sides, *settings)), partial(_launch, case, at), at.wgmma)


FOUND = [(at, _case(case, at)) for case in kernel_cases() for at in case.compiled]
CASES = [case for _, case in FOUND]
TUNED = [case for at, case in FOUND if at.tuned]
