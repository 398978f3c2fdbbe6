"""Networks whose operands broadcast: gradients as torch's, the bits of keep, what is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support import twins
from tests.support.beside_torch import assert_trains_as_torch
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 5, (3, 4, 6), 4
CHUNK_SIZE = 600  # bytes
SHAPES: list[tuple[int, ...]] = [
    *((), (1,), (1, 1, 1, 1), (6,), (4, 1), (4, 6), (3, 1, 1), (1, 3, 1, 1), (1, 1, 4, 1)),
    *((3, 4, 6), (1, 3, 4, 6), (3, 1, 6), (1, 3, 4, 1)),
]


class Parameters(nn.Module):
    """A map with a parameter of each shape, in every operation and order."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 3, 1), nn.Linear(72, CLASSES)
        self.params = nn.ParameterList(torch.rand(shape) + 0.5 for _ in range(6))
        self.register_buffer("mean", torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = self.params
        x = (self.conv(x - self.mean) * a + b) / c
        x = d / (1 + x * x) - e
        x = torch.add(f - x, self.mean, alpha=2)
        return self.head((torch.maximum(x, a) * self.mean).flatten(1))


class Maps(nn.Module):
    """Maps with maps of fewer pixels, channels or both, and quotients of maps of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.spatial, self.one = nn.Conv2d(6, 1, 1), nn.Conv2d(1, 1, 1)
        self.head, self.tail = nn.Linear(6 * 24, CLASSES), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        gates = torch.sigmoid(self.spatial(x))  # [N, 1, H, W]
        pooled = x.mean((2, 3), keepdim=True)  # [N, C, 1, 1]
        scalar = self.one(functional.adaptive_avg_pool2d(gates, 1))  # [N, 1, 1, 1]
        y = self.second(x) * gates / (1 + gates * pooled * pooled)
        y = y - pooled + gates - scalar * y
        y = torch.max(torch.maximum(y, x), other=pooled) + pooled.min(y) + x / (y * y + 1)
        y = torch.sub(y, gates, alpha=0.5)
        features = y.mean((2, 3))
        weights = torch.sigmoid(self.tail(features))  # [N, 1] beside [N, F]
        return self.head(y.flatten(1)) * weights / (1 + weights)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_of_parameters_are_torchs(shape: tuple[int, ...]) -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=2)
    net = seeded(lambda: Parameters(shape))
    assert_gradients_are_torchs(net, batch, policy="keep", chunk_size=CHUNK_SIZE, atol=1e-6)


class Splits(nn.Module):
    """Split attention, whose maps have five dimensions, as ResNeSt's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gates = nn.Conv2d(3, 6, 1), nn.Conv2d(3, 6, 1)
        self.head = nn.Linear(72, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.conv(x).reshape(-1, 2, 3, 4, 6)
        gates = torch.sigmoid(self.gates(x.mean((2, 3), keepdim=True))).reshape(-1, 2, 3, 1, 1)
        return self.head((parts * gates).sum(1).flatten(1))


def test_gradients_of_maps_of_five_dimensions_are_torchs() -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=2)
    assert_gradients_are_torchs(seeded(Splits), batch, policy="keep", chunk_size=CHUNK_SIZE)


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
def test_gradients_of_maps_are_torchs(policy: str) -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=2)
    options = {"policy": policy, "chunk_size": CHUNK_SIZE, "order_seed": 1}
    assert_gradients_are_torchs(seeded(Maps), batch, atol=1e-6, **options)


class Views(nn.Module):
    """Parameters and buffers that are seen in other shapes, as timm's LayerScale2d sees its."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 3, 1), nn.Linear(72, CLASSES)
        self.gamma, self.scale = nn.Parameter(torch.rand(3) + 0.5), nn.Parameter(torch.rand(()))
        self.pixels, self.rows = nn.Parameter(torch.rand(24)), nn.Parameter(torch.rand(1, 1, 4, 1))
        self.register_buffer("mean", torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x) * self.gamma.view(1, -1, 1, 1) - self.mean[None, :, None, None]
        x = x / self.gamma.to(x.dtype).reshape(3, 1, 1) + self.scale.view(1, 1, 1)
        x = x * self.pixels.view(4, 6)
        return self.head((x + self.rows.view(4, 1)).flatten(1))


def test_gradients_of_viewed_parameters_are_torchs() -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=2)
    assert_gradients_are_torchs(
        seeded(Views), batch, policy="keep", chunk_size=CHUNK_SIZE, atol=1e-6
    )


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x, net: x * net.param.detach().view(1, 3, 1, 1), (3,)),
        (lambda x, net: x * net.param.view(3, 4, 6), (4, 3, 3, 2)),  # of filters
        (lambda x, net: x * net.param.mul(net.param), (6,)),
    ],
)
def test_other_views_are_computed(
    function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    net = seeded(lambda: Calls(function, shape))
    nn.init.uniform_(net.param)
    assert_trains_as_torch(net, torch.randn(BATCH, *SHAPE))


class Permuted(nn.Module):
    """Layer scale behind a permutation, as ConvNeXt's, with odd shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 1), nn.Linear(144, CLASSES)
        self.gamma, self.rows = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).permute(0, 2, 3, 1) * self.gamma
        y = (y / self.rows + self.rows).permute(0, 3, 1, 2)
        return self.head(y.flatten(1))


def test_gradients_behind_a_permutation_are_torchs() -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=2)
    assert_gradients_are_torchs(seeded(Permuted), batch, policy="keep", chunk_size=CHUNK_SIZE)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "tf32"])
@pytest.mark.parametrize("make", [Maps, lambda: Parameters(()), lambda: Parameters((1, 3, 4, 6))])
def test_offloading_changes_no_bit(make: Callable[[], nn.Module], dtype: str) -> None:
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=1)
    settings = {"chunk_size": CHUNK_SIZE, "dtype": dtype}
    kept, moved = (
        twins.trained(seeded(make), batches, policy=policy, **settings)
        for policy in ("keep", "vdnn-all:m")
    )
    assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))
    assert all(torch.isfinite(value).all() for value in kept)


@pytest.mark.parametrize("bands", [1, 2])
def test_maps_in_bands_train_alike(bands: int) -> None:
    """One image is cut into bands of rows, unless a parameter has a value for each row."""
    (batch,) = random_batches(1, (1, 3, 16, 16), CLASSES, seed=2)
    shape = (1, 3, 1, 16) if bands > 1 else (1, 3, 16, 1)

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 3, 1), nn.Linear(768, CLASSES)
            self.scale = nn.Parameter(torch.rand(shape))

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x) * self.scale
            return self.head((y * torch.sigmoid(y[:, :1])).flatten(1))

    net = seeded(Wide)
    assert_gradients_are_torchs(net, batch, policy="keep", chunk_size=700, atol=1e-6)


class Calls(nn.Module):
    def __init__(
        self, function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 3, 1), function
        self.param = nn.Parameter(torch.ones(shape))
        self.register_buffer("counts", torch.ones(shape, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x), self)


@pytest.mark.parametrize(
    ("function", "shape", "message"),
    [
        (lambda x, net: x * net.param, (2, 3, 4, 6), "the first dimension is the batch"),
        (lambda x, net: x * net.param, (5, 2, 3, 4, 6), "at most 4 dimensions"),
        (lambda x, net: x / net.counts, (6,), "a buffer of torch.int64"),
        (lambda x, net: x / torch.ones(6), (6,), "not a parameter"),
    ],
)
def test_other_operands_are_refused(
    function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Calls(function, shape), [torch.empty(2, *SHAPE)])
