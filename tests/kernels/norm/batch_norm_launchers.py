"""The launchers of batch normalization or their references, with operands for their tests."""

from collections.abc import Callable, Mapping

import torch

from tvdnn.kernels.norm import batch_norm, batch_norm_grad

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}
EPS, MOMENTUM = 1e-3, 0.3
Launcher = Callable[..., None]


def launchers(suffix: str) -> Mapping[str, Launcher]:
    """The kernels or, by their suffix, the references."""
    names = ("batch_norm", *(f"batch_norm_{name}" for name in ("moments", "statistics", "recall")))
    found = {name: getattr(batch_norm, name + suffix) for name in names}
    for name in ("grad_sums", "grad_params", "grad_input"):
        found[name] = getattr(batch_norm_grad, f"batch_norm_{name}{suffix}")
    return found
