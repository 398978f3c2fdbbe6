"""A network of transposed convolutions: the bits of keep under any plan, gradients as torch's."""

import pytest
import torch
from torch import Tensor, nn

from tests.support import twins
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs

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
    options = {"policy": policy, "dtype": dtype, "kernels": "torch"}
    return twins.trained(net, batches, chunk_size=CHUNK_SIZE, **options)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_policy_trains_to_the_same_bits(dtype: str) -> None:
    kept, *others = (trained(policy, dtype) for policy in ("keep", "vdnn-all:m", "auto"))
    for moved in others:
        assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))
    assert all(torch.isfinite(value).all() for value in kept)


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
def test_gradients_are_torchs(policy: str) -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=6)
    assert_gradients_are_torchs(
        make_net(), batch, policy=policy, chunk_size=CHUNK_SIZE, order_seed=1
    )
