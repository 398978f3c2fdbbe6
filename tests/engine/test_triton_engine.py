"""The engine over Triton's kernels, also where only the interpreter runs them: fused as plain."""

import pytest
import torch
from torch import Tensor, nn

from tests.support.packing import packing
from tests.support.running import random_batches
from tvdnn.engine import Trainer
from tvdnn.graph import BITMAP, SSDC, TF32, Form, with_share
from tvdnn.optim import SGD, AdamW
from tvdnn.planner.policies import POLICIES

BATCH, SHAPE, CLASSES = 3, (3, 4, 6), 4
CHUNK_SIZE = 1400  # bytes: one or two samples a section


def make_net() -> nn.Sequential:
    """Every fused op, a pooling with overlapping windows, and channels that suit descriptors."""
    torch.manual_seed(2)
    features = [
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 16, 1), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
    ]
    classifier = [nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES)]
    return nn.Sequential(*features, nn.Flatten(), *classifier)


def trained(device: torch.device, policy: str, spec: SGD | AdamW, dtype: str) -> list[Tensor]:
    """The loss of a step, and the parameters after it."""
    net = make_net().to(device)
    ((x, y),) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=3)
    options = {"optimizer": spec, "policy": policy, "dtype": dtype, "kernels": "triton"}
    trainer = Trainer(net, x.to(device), chunk_size=CHUNK_SIZE, **options)
    loss = trainer.step(x.to(device), y.to(device))
    trainer.close()
    return [loss, *(param.detach() for param in net.parameters())]


@pytest.mark.parametrize(
    ("dtype", "spec"), [("bf16", SGD(lr=0.05, momentum=0.9)), ("tf32", AdamW(lr=0.01))]
)
def test_fused_steps_have_the_bits_of_plain_ones(
    device: torch.device, dtype: str, spec: SGD | AdamW
) -> None:
    """keep fuses, vdnn-all does not; it moves maps and runs a unit of samples at a time."""
    fused, plain = (trained(device, policy, spec, dtype) for policy in ("keep", "vdnn-all:m"))
    assert all(torch.equal(one, other) for one, other in zip(fused, plain, strict=True))
    assert all(torch.isfinite(value).all() for value in fused)


@pytest.mark.filterwarnings("ignore:.*packed codes of a step:RuntimeWarning")
@pytest.mark.parametrize("form", [TF32, with_share(BITMAP, 0.25), with_share(SSDC, 0.25)], ids=str)
def test_steps_with_codes_have_the_bits_of_plain_ones(
    device: torch.device, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every map that may rest in the form does so; packed codes have more values than room."""
    monkeypatch.setitem(POLICIES, "packing", packing(form))
    spec = SGD(lr=0.05, momentum=0.9)
    coded, plain = (trained(device, policy, spec, "tf32") for policy in ("packing", "keep"))
    assert all(torch.equal(one, other) for one, other in zip(coded, plain, strict=True))
