"""Networks that pad, slice, roll, join and rearrange maps."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, LEAST, TENSOR, NetworkCase

SHAPE, CLASSES = (3, 6, 6), 4
Way = Callable[[Tensor], Tensor]


class Returns(nn.Module):
    """Logits of `way` of a convolution's map of six channels."""

    def __init__(self, way: Way) -> None:
        super().__init__()
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


CONVOLUTIONS: dict[str, Callable[[], nn.Conv2d]] = {  # each network makes its own
    "same": partial(nn.Conv2d, 6, 3, (2, 4), padding="same"),
    "reflecting": partial(nn.Conv2d, 6, 3, 3, padding=(1, 2), padding_mode="reflect"),
    "circling": partial(nn.Conv2d, 6, 6, 3, padding="same", padding_mode="circular", groups=6),
}


def convolved(make: Callable[[], nn.Conv2d]) -> Returns:
    return Returns(make())


def mixed(x: Tensor) -> Tensor:
    """Most ways one behind the other."""
    x = pad(torch.relu(x), (1, 2, 2, 1), mode="reflect")
    x = torch.cat([x[:, :, ::2], x[:, :, 1:].roll(1, 3).flip(2), x[:, :, :-4]], 2)
    x = pad(functional.pixel_unshuffle(x[..., 1:], 2), (1, 0, 0, 2))
    return torch.stack(x.unbind(3)[:2], 1).permute(0, 2, 1, 3).flatten(1, 2)


MIXED = NetworkCase(partial(Returns, mixed), SHAPE)
NETWORKS = {
    **{name: NetworkCase(partial(Returns, way), SHAPE) for name, way in WAYS.items()},
    **{name: NetworkCase(partial(convolved, make), SHAPE) for name, make in CONVOLUTIONS.items()},
    "mixed": replace(MIXED, runs=(EXACT, TENSOR, HALF)),
    "mixed, in the least memory": replace(MIXED, runs=(EXACT,), policies=(LEAST,), gradients=False),
}
