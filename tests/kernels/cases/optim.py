"""Launches of optim.py and optim_partials.py to compile."""

import torch

from tests.support.offline import Case
from tvdnn.kernels.optim import from_partials as optim_partials
from tvdnn.kernels.optim import update as optim


def _empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _whole() -> None:
    param, control = _empty(4096, 4096), _empty(8)
    optim.sgd(param, param, None, control, nesterov=False, maximize=False)
    optim.sgd(param, param, param, control, nesterov=True, maximize=True)
    optim.adamw(param, param, param, param, control, maximize=False)


def _many() -> None:
    params = [_empty(size) for size in (64, 64, 128, 128, 256, 256, 1000, 10)]
    optim.sgd_many(params, params, params, _empty(8), nesterov=False, maximize=False)
    optim.adamw_many(params, params, params, params, _empty(8), maximize=False)


def _partials() -> None:
    for shape in ((512, 256, 3, 3), (64, 3, 7, 7), (2048, 512, 1, 1), (4096, 4096), (1000,)):
        param, partials, control = _empty(*shape), _empty(4, *shape), _empty(8)
        optim_partials.sgd_partials(param, partials, param, control, nesterov=False, maximize=False)
        optim_partials.adamw_partials(param, partials, param, param, control, maximize=False)


CASES = [
    Case("whole", _whole),
    Case("many", _many),
    Case("partials", _partials),
]
