"""Networks that pad, slice, roll, join and rearrange maps: keep's bits, gradients as torch's."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support import twins
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.engine import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

pytestmark = pytest.mark.usefixtures("few_trials")

BATCH, SHAPE, CLASSES = 5, (3, 6, 6), 4
CHUNK_SIZE = 600  # bytes: a sample a section
Way = Callable[[Tensor], Tensor]


class Returns(nn.Module):
    """Logits of what `way` makes of a convolution's map of six channels."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.way = nn.Conv2d(3, 6, 3, padding=1), way
        self.head = nn.LazyLinear(CLASSES)
        self(torch.zeros(1, *SHAPE))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.way(self.conv(x)).flatten(1))
        return logits


pad = functional.pad
WAYS: dict[str, Way] = {
    "zeros": lambda x: pad(x, (1, 2, 0, 3)),
    "a value": lambda x: pad(x, (1, 0), value=0.5),
    "crop": lambda x: pad(x, (-1, 2, 0, -3)),
    "channels": lambda x: pad(x, (0, 0, 0, 0, 1, -2)),
    "reflect": nn.ReflectionPad2d((1, 2, 5, 0)),
    "replicate": nn.ReplicationPad2d(2),
    "circular": nn.CircularPad2d((3, 0, 1, 6)),
    "module": nn.Sequential(nn.ZeroPad2d(1), nn.ConstantPad2d(1, 2.0)),
    "same": nn.Conv2d(6, 3, (2, 4), padding="same"),
    "reflecting": nn.Conv2d(6, 3, 3, padding=(1, 2), padding_mode="reflect"),
    "circling": nn.Conv2d(6, 6, 3, padding="same", padding_mode="circular", groups=6),
    "behind maxima": lambda x: functional.max_pool2d(pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2),
    "slices": lambda x: x[:, 1:, 1:, ::2],
    "last": lambda x: x[..., :-1],
    "numbers": lambda x: x[:, 1:3, :, -1, None],
    "channel": lambda x: x[:, 2],
    "select": lambda x: x.select(3, -2).narrow(-1, 1, 3),
    "focus": lambda x: torch.cat([x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)], 1),
    "chunks": lambda x: torch.cat(x.chunk(3, -1)[::-1], -1),
    "parts": lambda x: torch.cat([x.split([1, 5], 2)[1], *x.tensor_split(3, 2)[:2]], 2),
    "unbound": lambda x: torch.stack(torch.unbind(x, 2)[1:4], -1),
    "stack": lambda x: torch.stack([x, torch.relu(x)], 1).flatten(1, 2),
    "stack last": lambda x: torch.stack([x, 2 * x], dim=-1)[..., 1],
    "roll": lambda x: torch.roll(x, (1, -2, 3), (1, 2, 2)),
    "flip": lambda x: x.flip(1, -1),
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "expand": lambda x: x[:, :, :1, 2:3].expand(-1, -1, 4, 3),
    "shuffle": lambda x: functional.pixel_shuffle(x[:, :4], 2),
    "unshuffle": nn.PixelUnshuffle(3),
    "windows": lambda x: x.view(-1, 6, 2, 3, 3, 2).permute(0, 2, 4, 1, 3, 5).flatten(1, 2),
    "counted otherwise": lambda x: x.reshape(len(x), 4, 9, 6) * 2,
    "no factors": lambda x: x.reshape(len(x), 8, 27).unflatten(1, (2, 4)),
    "pooled permuted": lambda x: functional.max_pool2d(x.permute(0, 2, 3, 1), 2),
    "sum of both orders": lambda x: x + x.transpose(1, 2),
    "channels last": lambda x: x.permute(0, 2, 3, 1)[..., 1:].contiguous().transpose(1, 2),
}


def first_batch() -> tuple[Tensor, Tensor]:
    return random_batches(1, (BATCH, *SHAPE), CLASSES, seed=6)[0]


@pytest.mark.parametrize("name", WAYS)
def test_follows_torch(name: str) -> None:
    net, batch = Returns(WAYS[name]), first_batch()
    options = {"policy": "vdnn-all:m", "chunk_size": CHUNK_SIZE}
    virtual = virtualize(copy.deepcopy(net).eval(), batch[0], dtype="fp32", **options)
    with torch.no_grad():
        torch.testing.assert_close(virtual(batch[0]), net(batch[0]), rtol=1e-5, atol=1e-5)
    assert_gradients_are_torchs(net, batch, order_seed=1, **options)


def mixed(x: Tensor) -> Tensor:
    """Most ways one behind the other."""
    x = pad(torch.relu(x), (1, 2, 2, 1), mode="reflect")
    x = torch.cat([x[:, :, ::2], x[:, :, 1:].roll(1, 3).flip(2), x[:, :, :-4]], 2)
    x = pad(functional.pixel_unshuffle(x[..., 1:], 2), (1, 0, 0, 2))
    return torch.stack(x.unbind(3)[:2], 1).permute(0, 2, 1, 3).flatten(1, 2)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16"])
def test_every_policy_trains_to_the_same_bits(dtype: str) -> None:
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=5)
    train = partial(twins.trained, batches=batches, chunk_size=CHUNK_SIZE, dtype=dtype)
    kept = train(Returns(mixed), policy="keep")
    assert all(torch.isfinite(value).all() for value in kept)
    for options in ({"policy": "vdnn-all:m"}, {"policy": "auto", "budget": "min"}):
        moved = train(Returns(mixed), **options)
        assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))


def kinds(net: nn.Module) -> list[str]:
    """The ops behind the first, but views."""
    ops = trace(net, [torch.empty(2, *SHAPE)]).ops
    return [op.kind for op in ops[1:] if op.kind not in ("view", "flatten", "linear")]


class Padded(nn.Module):
    """A convolution of what `way` makes of another one's map; `beside`, that map is read too."""

    def __init__(self, way: Way, *, beside: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 5, padding=1)
        self.way, self.beside = way, beside

    def forward(self, x: Tensor) -> Tensor:
        padded = self.way(self.first(x))
        y: Tensor = self.second(padded)
        return (y + padded[:, :, 1:-1, 1:-1] if self.beside else y).flatten(1)


def test_a_convolution_pads_with_zeros_itself() -> None:
    assert kinds(Padded(lambda x: pad(x, (1, 1, 0, 0)))) == ["conv2d"]
    assert kinds(Padded(lambda x: pad(x, (3, 3, 3, 3)))) == ["conv2d"]
    assert kinds(Padded(lambda x: pad(x, (4, 4, 4, 4)))) == ["remap", "conv2d"]
    assert kinds(Padded(lambda x: pad(x, (0, 1, 0, 1)))) == ["remap", "conv2d"]
    assert kinds(Padded(lambda x: pad(x, (1, 1, 1, 1), value=1.0))) == ["remap", "conv2d"]
    assert kinds(Padded(lambda x: pad(x, (1, 1, 0, 0), mode="reflect"))) == ["remap", "conv2d"]


def test_what_changes_nothing_is_a_view() -> None:
    assert kinds(Returns(lambda x: pad(x, (0, 0)).roll(6, 2).repeat(1, 1, 1, 1)[:, :, :6])) == []


def test_a_pad_that_a_convolution_takes_over_is_still_there_for_others() -> None:
    net = Padded(lambda x: pad(x, (1, 1, 1, 1)), beside=True)
    assert sorted(kinds(net)) == ["add", "conv2d", "remap", "remap"]
    assert_gradients_are_torchs(net, first_batch())


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda x: x.roll(1), "roll of .* as one row"),
        (lambda x: x.roll(1, 0), "roll of .* along the batch"),
        (lambda x: x.flip(0), "flip of .* along the batch"),
        (lambda x: x.repeat(2, 1, 1, 1), "repeat of .* along the batch"),
        (lambda x: x.repeat(1, 1, 1, 1, 1), r"repeat of .* \(it takes as many dimensions\)"),
        (lambda x: x.reshape(-1, 36), "reshape of .* .the batch must stay"),
    ],
)
def test_what_moves_samples_is_refused(way: Way, message: str) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return way(x)

    with pytest.raises(UnsupportedOpError, match=message):
        trace(Net(), [torch.empty(2, *SHAPE)])
