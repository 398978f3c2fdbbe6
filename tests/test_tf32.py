"""In tf32, whatever products read was rounded to nearest: tensor cores would cut it toward zero."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.accuracy import torchs_precision
from tests.networks import activations
from tests.running import random_batches
from tvdnn.engine import Trainer
from tvdnn.engine.graphs import resolve_dtype
from tvdnn.kernels.conv import rounding
from tvdnn.kernels.rounding import stored_reference
from tvdnn.runtime import runner
from tvdnn.runtime.kernels import kernel_set

BATCH, SIDE, CLASSES = 3, 8, 4
PRODUCTS = (
    "conv2d",
    "conv2d_max_pool",
    "conv2d_grad_input",
    "conv2d_grad_weight",
    "linear",
    "linear_grad_input",
    "linear_grad_weight",
    "linear_grad_weight_sgd",
)


def make_net() -> nn.Sequential:
    """Every op whose results TF32 does not hold, between products."""
    torch.manual_seed(3)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.LocalResponseNorm(3), nn.MaxPool2d(3, 1, 1)),
        *(nn.Conv2d(16, 16, 3), nn.AvgPool2d(3, 1), nn.Conv2d(16, 16, 1), nn.Dropout(0.3)),
        *(nn.Conv2d(16, 16, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 1)),
        *(nn.BatchNorm2d(16), nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.ReLU()),
        nn.Conv2d(16, 16, 1),
        *(module for each in activations() for module in (each, nn.Conv2d(16, 16, 1))),
        *(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Dropout(0.3)),
        *(nn.LayerNorm(16), nn.Linear(16, 16), nn.GroupNorm(4, 16), nn.Linear(16, 16)),
        *(nn.Linear(16, 8), nn.Dropout(0.3), nn.Linear(8, CLASSES)),
    )


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
def test_products_read_what_tf32_holds(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, seen = kernel_set("torch"), set()

    def watched(name: str) -> Callable[..., None]:
        launch = getattr(whole, name)

        def run(*args: Any, **settings: Any) -> None:
            seen.add(name)
            for operand in args[:2]:
                assert torch.equal(operand, stored_reference(operand, torch.float32, "tf32")), name
            launch(*args, **settings)

        return run

    watching = {name: watched(name) for name in PRODUCTS}
    both = SimpleNamespace(**(vars(whole) | watching))
    monkeypatch.setattr(runner, "kernel_set", lambda _: both)
    net = make_net()
    ((x, y),) = random_batches(1, (BATCH, 3, SIDE, SIDE), CLASSES, seed=3)
    trainer = Trainer(net, x, policy=policy, dtype="tf32", kernels="torch")
    trainer.step(x, y)
    trainer.close()
    assert {"conv2d", "conv2d_grad_input", "conv2d_grad_weight", "linear"} <= seen


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_torchs_switch_of_convolutions_alone_is_followed_and_left(dtype: str) -> None:
    """Where that of recurrent layers differs, torch refuses to say what cuDNN as a whole does."""
    with torchs_precision(dtype):
        asked = torch.backends.cudnn.conv.fp32_precision
        for precision in ("ieee", "tf32"):
            with rounding(precision):
                assert torch.backends.cudnn.conv.fp32_precision == precision
        assert torch.backends.cudnn.conv.fp32_precision == asked
        assert resolve_dtype(None, torch.device("cuda")) == dtype
    assert resolve_dtype(None, torch.device("cpu")) == "fp32"
