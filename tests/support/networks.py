"""Networks for tests: pure data for the planner, and small random torch modules to train."""

import random
from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn

from tvdnn.graph import Network, Op, Param, Value

MAX_CHANNELS = 8


class NetworkMaker:
    """Builds a chain network op by op; `value` is the last op's output."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.values = {"x": Value("x", shape)}
        self.ops: list[Op] = []
        self.params: dict[str, Param] = {}
        self.value = "x"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values[self.value].shape

    def add(
        self,
        kind: str,
        shape: tuple[int, ...],
        params: Sequence[tuple[int, ...]] = (),
        **attrs: object,
    ) -> None:
        name = f"{kind}{len(self.ops)}"
        names = [f"{name}.weight", f"{name}.bias"][: len(params)]
        for param, size in zip(names, params, strict=True):
            self.params[param] = Param(param, size, 4 * prod(size))
        self.values[name] = Value(name, shape)
        self.ops.append(Op(name, kind, (self.value,), name, tuple(names), attrs))
        self.value = name

    def conv(self, channels: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> None:
        n, h, w, c = self.shape
        out = [(side + 2 * padding - kernel) // stride + 1 for side in (h, w)]
        shapes = ((channels, c, kernel, kernel), (channels,))
        pair = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": 1}
        attrs = {name: (value, value) for name, value in pair.items()}
        self.add("conv2d", (n, *out, channels), shapes, groups=1, **attrs)

    def relu(self) -> None:
        self.add("relu", self.shape)

    def max_pool(self, kernel: int = 2) -> None:
        n, h, w, c = self.shape
        sizes = {"kernel": kernel, "stride": kernel, "padding": 0, "dilation": 1}
        attrs = {name: (value, value) for name, value in sizes.items()}
        self.add("max_pool2d", (n, h // kernel, w // kernel, c), **attrs)

    def flatten(self) -> None:
        n, *rest = self.shape
        self.add("flatten", (n, prod(rest)))

    def linear(self, features: int) -> None:
        n, width = self.shape
        self.add("linear", (n, features), ((features, width), (features,)))

    def dropout(self, p: float = 0.5) -> None:
        self.add("dropout", self.shape, p=p, op_id=len(self.ops))

    def build(self, name: str = "net") -> Network:
        return Network(name, self.values, tuple(self.ops), self.params, ("x",), (self.value,), True)


def pooled(shape: tuple[int, ...], channels: int) -> Network:
    """Two convolutions with their ReLUs, one pooling and a classifier of ten classes."""
    maker = NetworkMaker(shape)
    for _ in range(2):
        maker.conv(channels)
        maker.relu()
    maker.max_pool()
    maker.flatten()
    maker.linear(10)
    return maker.build()


def vgg(
    batch: int,
    depths: Sequence[int] = (2, 2, 3, 3, 3),
    image: int = 224,
    classifier: int = 4096,
) -> Network:
    """VGG with `depths` convolutions in its five groups."""
    maker = NetworkMaker((batch, image, image, 3))
    for channels, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            maker.conv(channels)
            maker.relu()
        maker.max_pool()
    maker.flatten()
    for _ in range(2):
        maker.linear(classifier)
        maker.relu()
        maker.dropout()
    maker.linear(1000)
    return maker.build("vgg")


class Sum(nn.Module):
    """The sum of all branches of the input. Some add to the first in place."""

    def __init__(self, branches: Sequence[nn.Module], inplace: bool) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        total, *others = (branch(x) for branch in self.branches)
        for other in others:
            total = total.add_(other) if self.inplace else total + other
        return total


class Concat(nn.Module):
    """Branches of the input side by side. Each reads some of its channels."""

    def __init__(self, branches: Sequence[nn.Module], ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.ranges = ranges

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(self.branches, self.ranges, strict=True)
        return torch.cat([branch(x[:, start:stop]) for branch, (start, stop) in pairs], 1)


class Dense(nn.Module):
    """A dense block (DenseNet): each layer reads all channels that there are, and adds a few."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        sizes = [channels + growth * number for number in range(layers)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(size, eps=0.1), nn.ReLU(), nn.Conv2d(size, growth, 1))
            for size in sizes
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class Gated(nn.Module):
    """Squeeze and excitation (Hu et al. 2018) in its simplest form, and a shift by channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.excite = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.excite(x.mean([2, 3], keepdim=True))
        return x * torch.sigmoid(gates) + gates


class Computed(nn.Module):
    """Products, differences and multiples of maps, one of them a softmax."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(channels, 1, 1))
        self.bias = nn.Parameter(torch.rand(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.softmax(0.5 * x, 1)
        return (1 - x) * shares - (self.scale * x + self.bias) / 2


def activations() -> list[nn.Module]:
    """Every activation function but ReLU, a layer each; in place where torch has that."""
    inplace = (nn.LeakyReLU, nn.ReLU6, nn.ELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid)
    layers = [kind(inplace=True) for kind in inplace]
    return [*layers, nn.GELU(), nn.GELU("tanh"), nn.Sigmoid(), nn.Tanh()]


def random_chain(
    rng: random.Random, channels: int, image: int, classes: int, *, forks: bool = False
) -> nn.Sequential:
    """A chain for maps [N, channels, image, image], of every kind of layer that a chain holds.

    With `forks`, some of its features are sums or concatenations of branches, or dense.
    """
    shape = (channels, image, image)
    features: list[nn.Module] = []
    for _ in range(rng.randint(1, 6)):
        if not forks or rng.random() < 0.4:
            layer, shape = _feature(rng, shape)
        elif rng.random() < 0.5:
            layer = _sum(rng, shape)
        elif rng.random() < 0.7 or min(shape[1:]) < 2:
            layer, shape = _concat(rng, shape)
        else:
            layer, shape = _dense(rng, shape)
        features.append(layer)
    classifier = list(_classifier(rng, prod(shape), classes))
    return nn.Sequential(*features, nn.Flatten(), *classifier)


def _feature(
    rng: random.Random, shape: tuple[int, int, int]
) -> tuple[nn.Module, tuple[int, int, int]]:
    """A layer over maps of `shape` [C, H, W], and the shape that it makes."""
    kinds = ("conv", "conv", "conv", "activation", "max", "avg", "norm", "batch", "dropout")
    kind = rng.choice(kinds)
    if kind == "conv":
        return _conv(rng, shape)
    if kind in ("max", "avg") and min(shape[1:]) >= 2:
        return _pool(rng, kind, shape)
    if kind == "norm":
        return nn.LocalResponseNorm(rng.randint(1, 5), alpha=0.1), shape
    if kind == "batch" and min(shape[1:]) >= 2:
        return _batch_norm(rng, shape), shape
    if kind == "dropout":
        return nn.Dropout(rng.choice((0.1, 0.5))), shape
    return _activation(rng, inplace=rng.random() < 0.5), shape


def _sum(rng: random.Random, shape: tuple[int, int, int]) -> Sum:
    """Branches from and to maps of `shape`; sums lie within sums, and a branch may be the input."""
    branches = [list(_branch(rng, shape)) for _ in range(rng.randint(2, 3))]
    inplace = rng.random() < 0.5 and bool(branches[0]) and isinstance(branches[0][-1], nn.Conv2d)
    return Sum([nn.Sequential(*layers) for layers in branches], inplace)


def _concat(rng: random.Random, shape: tuple[int, int, int]) -> tuple[Concat, tuple[int, int, int]]:
    """Two or three branches from and to maps as wide and high as those of `shape`."""
    branches, ranges, total = [], [], 0
    for _ in range(rng.randint(2, 3)):
        start = rng.randrange(shape[0])
        stop = rng.randint(start + 1, shape[0]) if rng.random() < 0.5 else shape[0]
        branches.append(nn.Sequential(*_branch(rng, (stop - start, *shape[1:]))))
        ranges.append((start, stop))
        total += stop - start
    return Concat(branches, ranges), (total, *shape[1:])


def _dense(rng: random.Random, shape: tuple[int, int, int]) -> tuple[Dense, tuple[int, int, int]]:
    growth, layers = rng.randint(1, 3), rng.randint(1, 3)
    return Dense(shape[0], growth, layers), (shape[0] + growth * layers, *shape[1:])


def _branch(rng: random.Random, shape: tuple[int, int, int]) -> Iterator[nn.Module]:
    for _ in range(rng.randint(0, 2)):
        kinds = ("conv", "conv", "activation", "batch", "dropout", "sum", "gated", "computed")
        kind = rng.choice((*kinds, "resized"))
        if kind == "conv":
            yield nn.Conv2d(shape[0], shape[0], 3, padding=1)
        elif kind == "activation":
            yield _activation(rng, inplace=False)
        elif kind == "batch" and min(shape[1:]) >= 2:
            yield _batch_norm(rng, shape)
        elif kind == "dropout":
            yield rng.choice((nn.Dropout, nn.Dropout2d))(0.3)
        elif kind == "gated":
            yield Gated(shape[0])
        elif kind == "computed":
            yield Computed(shape[0])
        elif kind == "resized":
            yield _resized(rng, shape)
        else:
            yield _sum(rng, shape)


def _resized(rng: random.Random, shape: tuple[int, ...]) -> nn.Sequential:
    """Made another size, and back."""
    sides = tuple(rng.randint(1, 2 * side) for side in shape[1:])
    modes = [rng.choice(("nearest", "bilinear")) for _ in range(2)]
    there, back = zip((sides, shape[1:]), modes, strict=True)
    return nn.Sequential(nn.Upsample(there[0], mode=there[1]), nn.Upsample(back[0], mode=back[1]))


def _batch_norm(rng: random.Random, shape: tuple[int, ...]) -> nn.BatchNorm2d:
    """Three of four train, one evaluates. With few values, eps keeps deviations from zero."""
    layer = nn.BatchNorm2d(shape[0], eps=0.1, affine=rng.random() < 0.7)
    return layer.train(rng.random() < 0.75)


def _activation(rng: random.Random, *, inplace: bool) -> nn.Module:
    """ReLU, or as often another function; in place where told so and torch has that."""
    layer = nn.ReLU() if rng.random() < 0.5 else rng.choice(activations())
    if hasattr(layer, "inplace"):
        layer.inplace = inplace
    return layer


def _conv(rng: random.Random, shape: tuple[int, ...]) -> tuple[nn.Conv2d, tuple[int, int, int]]:
    channels, *sides = shape
    out = rng.randint(1, MAX_CHANNELS)
    groups = rng.choice([g for g in range(1, out + 1) if out % g == channels % g == 0])
    kernel = [rng.randint(1, min(3, side)) for side in sides]
    stride = [rng.randint(1, 2) for _ in sides]
    padding = [rng.randint(0, size - 1) for size in kernel]
    conv = nn.Conv2d(
        channels,
        out,
        tuple(kernel),
        stride=tuple(stride),
        padding=tuple(padding),
        groups=groups,
        bias=rng.random() < 0.8,
    )
    return conv, (out, *_sides(sides, kernel, stride, padding))


def _pool(
    rng: random.Random, kind: str, shape: tuple[int, ...]
) -> tuple[nn.Module, tuple[int, int, int]]:
    channels, *sides = shape
    kernel, stride = (rng.randint(2, min(3, *sides)) for _ in range(2))
    padding = rng.randint(0, kernel // 2)
    pool = nn.MaxPool2d if kind == "max" else nn.AvgPool2d
    wide = _sides(sides, [kernel] * 2, [stride] * 2, [padding] * 2)
    return pool(kernel, stride=stride, padding=padding), (channels, *wide)


def _sides(
    sides: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[int, int]:
    height, width = (
        (side + 2 * around - size) // step + 1
        for side, size, step, around in zip(sides, kernel, stride, padding, strict=True)
    )
    return height, width


def _classifier(rng: random.Random, width: int, classes: int) -> Iterator[nn.Module]:
    for _ in range(rng.randint(0, 2)):
        hidden = rng.randint(2, 12)
        yield nn.Linear(width, hidden, bias=rng.random() < 0.8)
        if rng.random() < 0.8:
            yield nn.ReLU()
        if rng.random() < 0.4:
            yield nn.Dropout(0.3)
        width = hidden
    yield nn.Linear(width, classes)
