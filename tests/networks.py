"""Networks as pure data, for tests of planner and schedules that need no torch module."""

from collections.abc import Sequence
from math import prod

from tvdnn.graph import Network, Op, Param, Value


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
        pair = {"kernel": kernel, "stride": kernel, "padding": 0, "dilation": 1}
        attrs = {name: (value, value) for name, value in pair.items()}
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


def vgg(
    batch: int, depths: Sequence[int] = (2, 2, 3, 3, 3), image: int = 224, classifier: int = 4096
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
