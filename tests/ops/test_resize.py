"""Networks that resize maps, beside their skips: the bits of keep, gradients as torch's."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tvdnn
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.engine import Trainer, training_graph
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.graph import Kind
from tvdnn.optim import SGD
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 4, (3, 8, 8), 3
CHUNK_SIZE = 1000  # bytes: a sample a section


class Decoder(nn.Module):
    """A small U-Net (Ronneberger et al. 2015) that resizes in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, padding=1)
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.joined, self.head = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.relu(self.down(x))
        inner = torch.relu(self.inner(functional.max_pool2d(skip, 2)))
        inner = functional.interpolate(inner, size=(3, 5), mode="bilinear")
        inner = functional.interpolate(inner, scale_factor=(1.4, 0.9))
        y = self.joined(torch.cat([skip, self.up(inner)], 1))
        y = torch.cat([y, functional.interpolate(inner, (8, 8))], 1)
        return self.head(y)


def make_net() -> nn.Module:
    torch.manual_seed(3)
    return Decoder()


def batch(seed: int) -> tuple[Tensor, Tensor]:
    ((x, _),) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed)
    generator = torch.Generator().manual_seed(seed)
    return x, torch.randint(CLASSES, (BATCH, *SHAPE[1:]), generator=generator)


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_trains_to_the_bits_of_keep(dtype: str) -> None:
    nets, (x, y) = [make_net(), make_net()], batch(1)
    settings = {"optimizer": SGD(lr=0.05), "chunk_size": CHUNK_SIZE, "dtype": dtype}
    keep = Trainer(nets[0], x, policy="keep", **settings)
    small = Trainer(nets[1], x, policy="vdnn-all:m", order_seed=5, **settings)
    assert small.schedule.slab_nbytes > 0
    for _ in range(2):
        assert torch.equal(keep.step(x, y), small.step(x, y))
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_gradients_are_torchs() -> None:
    options = {"policy": "vdnn-all:m", "chunk_size": CHUNK_SIZE}
    assert_gradients_are_torchs(make_net(), batch(2), **options)


def test_what_is_resized_is_not_kept() -> None:
    graph = training_graph(Decoder(), torch.empty(BATCH, *SHAPE))
    resizing = [each for each in graph.passes if graph.ops[each.op].kind == "resize"]
    backward = [each for each in resizing if each.role == "grad_input"]
    assert len(backward) == 4
    for each in backward:
        (read,) = each.reads
        assert graph.buffers[read.buffer].kind is Kind.GRAD


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_nothing_is_done_where_sides_stay() -> None:
    network = trace(Calls(lambda x: functional.interpolate(x, (8, 8))), (torch.empty(2, *SHAPE),))
    kinds = [op.kind for op in network.ops]
    assert kinds == ["view", "affine"]  # the latter copies an input that is returned


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "bicubic"}, "interpolate by bicubic .by nearest or bilinear"),
        ({"mode": "bilinear", "antialias": True}, "bilinear with antialias"),
    ],
)
def test_other_modes_are_refused(settings: dict[str, object], message: str) -> None:
    net = Calls(lambda x: functional.interpolate(x, (5, 5), **settings))
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.empty(2, *SHAPE),))


def test_maps_without_pixels_are_refused() -> None:
    with pytest.raises(InputError, match=r"\[2, 3, 0, 2\] without pixels of \[2, 3, 1, 4\]"):
        tvdnn.nn.Upsample(scale_factor=0.5, mode="bilinear")(torch.randn(2, 3, 1, 4))
