"""Launches of optim.py to compile."""

import torch

from tests.offline import Case
from tvdnn.kernels.optim import sgd


def _sgd() -> None:
    param = torch.empty(4096, 4096, device="meta")
    control = torch.empty(8, device="meta")
    sgd(param, param, None, control, nesterov=False, maximize=False)
    sgd(param, param, param, control, nesterov=True, maximize=True)


CASES = [Case("sgd", _sgd)]
