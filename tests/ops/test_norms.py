"""Networks of normalizations and permuted maps: the bits of keep in any plan, torch's gradients."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support import twins
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.engine import virtualize
from tvdnn.kernels.conv import depthwise as conv_depthwise

SHAPE, CLASSES = (3, 6, 6), 4
BATCH = 19  # more than a group of samples whose sums add up
CHUNK_SIZE = 1200  # bytes: a sample or a few a section


class LayerNorm2d(nn.LayerNorm):
    """Layer normalization over the channels of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        x = functional.layer_norm(
            x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return x.permute(0, 3, 1, 2)


class Block(nn.Module):
    """A ConvNeXt block: products over the channels of permuted maps, and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.wide = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels, bias=False)
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(functional.gelu(self.wide(y)))
        return x + self.scale * y.permute(0, 3, 1, 2)


def make_net() -> nn.Sequential:
    torch.manual_seed(7)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 2, stride=2), LayerNorm2d(8), Block(8)),
        *(nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 1, bias=False)),
        *(nn.InstanceNorm2d(8, affine=True), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), LayerNorm2d(8), nn.Flatten(), nn.Linear(8, 12)),
        *(nn.LayerNorm(12, bias=False), nn.Linear(12, CLASSES)),
    )
    norms = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d)
    for norm in (module for module in net.modules() if isinstance(module, norms)):
        for param in norm.parameters():
            nn.init.normal_(param, 1.0, 0.3)
    return net


def trained(
    kernels: str, policy: str, dtype: str, batch: int, device: torch.device
) -> list[Tensor]:
    """The losses of steps, two on full batches, and the parameters after them."""
    net = make_net()
    batches = random_batches(1 + (batch == BATCH), (batch, *SHAPE), CLASSES, seed=5)
    options = {"policy": policy, "dtype": dtype, "kernels": kernels}
    return twins.trained(net, batches, device, chunk_size=CHUNK_SIZE, **options)


@pytest.mark.parametrize(
    ("kernels", "dtype", "batch"),
    [("torch", "fp32", BATCH), ("torch", "bf16", BATCH), ("triton", "tf32", 2)],
)
def test_every_policy_trains_to_the_same_bits(
    kernels: str,
    dtype: str,
    batch: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conv_depthwise, "PROGRAMS", 4)  # which an interpreter takes one by one
    policies = "keep", "vdnn-all:m"
    kept, moved = (trained(kernels, policy, dtype, batch, device) for policy in policies)
    assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))
    assert all(torch.isfinite(value).all() for value in kept)


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
def test_gradients_are_torchs(policy: str) -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=6)
    assert_gradients_are_torchs(
        make_net(), batch, policy=policy, chunk_size=CHUNK_SIZE, order_seed=1
    )


class Permuting(nn.Module):
    """Returns maps whose channels are last, and as they are otherwise turned."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 1)
        self.norm = nn.LayerNorm(5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        last = self.norm(torch.permute(self.conv(x), (0, 2, 3, 1)))
        return last, last.transpose(1, 3).relu()


def test_permuted_outputs_are_torchs() -> None:
    torch.manual_seed(8)
    net, x = Permuting(), torch.randn(3, 3, 4, 5)
    virtual = virtualize(copy.deepcopy(net), x, policy="keep", dtype="fp32")
    ours, exact = virtual(x), net(x)
    weights = [torch.randn_like(y) for y in exact]
    for each, own in ((ours, virtual), (exact, net)):
        sum((y * weight).sum() for y, weight in zip(each, weights, strict=True)).backward()
        assert own is not None
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(virtual.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)
