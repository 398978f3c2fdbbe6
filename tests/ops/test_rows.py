"""Networks over rows [N, C, L], and adaptive maxima: gradients as torch's, the bits of keep."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.ops.test_remap import Returns, first_batch
from tests.support import twins
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.engine import virtualize
from tvdnn.errors import InputError
from tvdnn.trace.trace import trace

pytestmark = pytest.mark.usefixtures("few_trials")

BATCH, SHAPE, CLASSES = 4, (3, 24), 3
CHUNK_SIZE = 600  # bytes: a sample a section


class Rows(nn.Module):
    """Logits of what layers make of [N, C, L]."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.Sequential(*layers)
        self.head = nn.LazyLinear(CLASSES)
        self(torch.randn(2, *SHAPE))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(x).flatten(1))
        return logits


class Scaled(nn.Module):
    """Sums and products with a parameter of each channel, in its shape or another."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(6, 1)), nn.Parameter(torch.rand(1, 6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


def conv(**settings: object) -> nn.Module:
    return nn.Conv1d(3, 6, 3, **settings)  # type: ignore[arg-type]


LAYERS: dict[str, Callable[[], tuple[nn.Module, ...]]] = {
    "conv": lambda: (conv(stride=2, padding=1),),
    "dilated": lambda: (conv(dilation=3, padding="same"), nn.Conv1d(6, 4, 2, groups=2)),
    "even": lambda: (nn.Conv1d(3, 6, 4, padding="same", bias=False),),
    "depthwise": lambda: (conv(), nn.Conv1d(6, 6, 5, groups=6)),
    "reflect": lambda: (conv(padding=2, padding_mode="reflect"), nn.ReflectionPad1d((1, 3))),
    "transposed": lambda: (conv(), nn.ConvTranspose1d(6, 2, 4, 2, 1, output_padding=1)),
    "norm": lambda: (conv(), nn.BatchNorm1d(6), nn.ReLU(), conv2()),
    "instance": lambda: (conv(), nn.InstanceNorm1d(6), nn.GroupNorm(3, 6), nn.SiLU()),
    "prelu": lambda: (conv(), nn.PReLU(6), nn.PReLU(), conv2()),
    "scaled": lambda: (conv(), Scaled(), conv2()),
    "max": lambda: (conv(), nn.MaxPool1d(3, 2, 1), conv2()),
    "avg": lambda: (conv(), nn.AvgPool1d(4, 3, 2, ceil_mode=True, count_include_pad=False)),
    "adaptive": lambda: (conv(), nn.AdaptiveAvgPool1d(5)),
    "adaptive max": lambda: (conv(), nn.ReLU(), nn.AdaptiveMaxPool1d(5)),
    "norms": lambda: (conv(), nn.LPPool1d(2, 3, 2)),
    "upsampled": lambda: (conv(), nn.Upsample(scale_factor=2), conv2()),
    "linear": lambda: (conv(), nn.Upsample(30, mode="linear", align_corners=True)),
}


def conv2() -> nn.Module:
    return nn.Conv1d(6, 4, 3)


@pytest.mark.parametrize("name", LAYERS)
def test_rows_follow_torch(name: str) -> None:
    net, ((x, y),) = Rows(*LAYERS[name]()), random_batches(1, (BATCH, *SHAPE), CLASSES, seed=6)
    options = {"policy": "vdnn-all:m", "chunk_size": CHUNK_SIZE}
    assert_gradients_are_torchs(net, (x, y), order_seed=1, atol=1e-6, **options)


def every_layer() -> Rows:
    torch.manual_seed(3)
    layers = (conv(padding=1), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), conv2())
    return Rows(*layers, nn.InstanceNorm1d(4), nn.AdaptiveMaxPool1d(4))


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16"])
def test_every_policy_trains_to_the_same_bits(dtype: str) -> None:
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=5)
    train = partial(twins.trained, batches=batches, chunk_size=CHUNK_SIZE, dtype=dtype)
    kept = train(every_layer(), policy="keep")
    assert all(torch.isfinite(value).all() for value in kept)
    for options in ({"policy": "vdnn-all:m"}, {"policy": "auto", "budget": "min"}):
        moved = train(every_layer(), **options)
        assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))


def test_rows_are_returned() -> None:
    torch.manual_seed(1)
    net, x = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Tanh()), torch.randn(2, *SHAPE)
    virtual = virtualize(net, x, policy="keep", dtype="fp32")
    torch.testing.assert_close(virtual(x), net(x))


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)])
def test_an_image_without_a_batch_is_named(layer: nn.Module) -> None:
    with pytest.raises(InputError, match=r"input input of shape \(3, 8, 8\) has no batch; pass"):
        trace(layer, [torch.empty(3, 8, 8)])


@pytest.mark.parametrize(
    "way",
    [
        lambda x: functional.adaptive_max_pool2d(torch.relu(x), (2, 3)),
        lambda x: functional.adaptive_max_pool2d(torch.relu(x), (4, None)),
        nn.AdaptiveMaxPool2d(5),
        nn.AdaptiveAvgPool2d((4, 9)),
        nn.LPPool2d(2, 3, 2),
        lambda x: functional.lp_pool2d(torch.relu(x) + 1, 3.0, (2, 3), ceil_mode=True),
    ],
)
def test_pools_follow_torch(way: Callable[[Tensor], Tensor]) -> None:
    options = {"policy": "vdnn-all:m", "chunk_size": CHUNK_SIZE}
    assert_gradients_are_torchs(Returns(way), first_batch(), order_seed=1, atol=1e-6, **options)
