"""A network of transposed convolutions: the bits of keep under any plan, gradients as torch's."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.running import random_batches
from tvdnn.engine import Trainer, virtualize
from tvdnn.optim import SGD

BATCH, SHAPE, CLASSES = 5, (3, 6, 5), 4
CHUNK_SIZE = 1200


def make_net() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU()),
        *(nn.ConvTranspose2d(6, 8, 2, stride=2, output_padding=1), nn.ReLU()),
        *(nn.ConvTranspose2d(8, 4, 3, padding=1, groups=2, bias=False), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)),
    )


def trained(policy: str, dtype: str) -> list[Tensor]:
    """The losses of two steps, and the parameters after them."""
    net, batches = make_net(), random_batches(2, (BATCH, *SHAPE), CLASSES, seed=5)
    options = {"optimizer": SGD(lr=0.1), "policy": policy, "dtype": dtype, "kernels": "torch"}
    trainer = Trainer(net, batches[0][0], chunk_size=CHUNK_SIZE, **options)
    losses = [trainer.step(x, y).clone() for x, y in batches]
    trainer.close()
    return [*losses, *(param.detach() for param in net.parameters())]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_policy_trains_to_the_same_bits(dtype: str) -> None:
    kept, *others = (trained(policy, dtype) for policy in ("keep", "vdnn-all:m", "auto"))
    for moved in others:
        assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))
    assert all(torch.isfinite(value).all() for value in kept)


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
def test_gradients_are_torchs(policy: str) -> None:
    net = make_net()
    twin = copy.deepcopy(net).double()
    ((x, y),) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=6)
    virtual = virtualize(net, x, policy=policy, chunk_size=CHUNK_SIZE, dtype="fp32", order_seed=1)
    inputs = (x.clone().requires_grad_(), x.double().requires_grad_())
    for each, given in ((virtual, inputs[0]), (twin, inputs[1])):
        functional.cross_entropy(each(given), y).backward()
    for mine, theirs in (inputs, *zip(net.parameters(), twin.parameters(), strict=True)):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-7)
