"""Networks whose operands broadcast: torch's gradients, keep's bits, and refusals."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.computed_networks import seeded
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 5, (3, 4, 6), 4
CHUNK_SIZE = 600  # bytes


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


CONSTANT = torch.ones(6)  # made outside of a network


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
        (lambda x, net: x / CONSTANT, (6,), "not a parameter"),
    ],
)
def test_other_operands_are_refused(
    function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Calls(function, shape), [torch.empty(2, *SHAPE)])
