"""Square convolutions: those of VGG-16 and ResNet-50, and those in groups of other networks."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from math import nan
from typing import Any, Final

import torch
from torch import Tensor

from bench.cases.case import Measured
from bench.cases.launch import EXACT_SAMPLES, Launch, nchw
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.conv.bands import packed_shape, packed_shape_grad_input
from tvdnn.kernels.conv.batch_stats import MomentCells, moment_cells
from tvdnn.kernels.conv.pack_weight import pack_weight, pack_weight_grad_input
from tvdnn.kernels.language.channel_ranges import padded_channels
from tvdnn.kernels.language.rounding import stored_reference

SAMPLES: Final = 256


@dataclass(frozen=True, slots=True)
class Layer:
    """A square convolution, and how many of it a network has."""

    side: int
    in_channels: int
    out_channels: int
    taps: int = 3
    stride: int = 1
    count: int = 1
    dilation: int = 1
    groups: int = 1
    pad: int | None = None  # by default stride 1 keeps the side
    padded: bool = False  # whether maps lie in wider ones, as `padding_of` says

    @property
    def name(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        groups = f" in {self.groups}" if self.groups > 1 else ""
        channels = f"{self.in_channels}->{self.out_channels}{groups}"
        return f"{channels} {self.taps}x{self.taps}{stride} @{self.side}"

    @property
    def padding(self) -> int:
        return self.taps // 2 if self.pad is None else self.pad

    @property
    def out_side(self) -> int:
        reach = self.dilation * (self.taps - 1) + 1
        return (self.side + 2 * self.padding - reach) // self.stride + 1

    @property
    def macs(self) -> int:
        """Products that one sample takes, products with padding included."""
        return self.out_side**2 * self.out_channels * self.shape[1] * self.taps**2

    @property
    def settings(self) -> dict[str, Any]:
        """The geometry as launchers take it."""
        sides = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return {name: (side, side) for name, side in sides.items()} | {"groups": self.groups}

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The weight's shape, [K, C/g, R, S]."""
        return (self.out_channels, self.in_channels // self.groups, self.taps, self.taps)

    @property
    def sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.side, self.side), (self.out_side, self.out_side)

    def cells(self, dtype: torch.dtype, precision: str = "tf32") -> MomentCells | None:
        """Those whose moments its forward pass leaves, if any."""
        settings = {**self.settings, "dtype": dtype, "precision": precision}
        return moment_cells(*self.sides, self.shape, **settings, pitches=self.pitches)

    @property
    def pitches(self) -> tuple[int, int]:
        """Channels from one pixel to the next of the input and of the output."""
        return self.pitch(self.in_channels), self.pitch(self.out_channels)

    def pitch(self, channels: int) -> int:
        return channels + (padding_of(channels) if self.padded else 0)


def padding_of(channels: int) -> int:
    """The channels that the engine leaves empty behind those of a map that it pads."""
    return padded_channels(channels, BF16.itemsize) - channels


VGG16: Final = (
    Layer(224, 3, 64), Layer(224, 64, 64), Layer(112, 64, 128), Layer(112, 128, 128),
    Layer(56, 128, 256), Layer(56, 256, 256, count=2), Layer(28, 256, 512),
    Layer(28, 512, 512, count=2), Layer(14, 512, 512, count=3),
)  # fmt: skip


def _stage(side: int, inputs: int, width: int, blocks: int, stride: int) -> tuple[Layer, ...]:
    """The convolutions of one stage of bottleneck blocks, the stride in its first 3x3."""
    inner, wide = side // stride, 4 * width
    strided = (Layer(side, width, width, stride=stride),) if stride > 1 else ()
    return (
        Layer(side, inputs, width, 1),
        *strided,
        Layer(inner, width, width, count=blocks - len(strided)),
        Layer(inner, width, wide, 1, count=blocks + (stride == 1)),  # the shortcut has its shape
        *((Layer(side, inputs, wide, 1, stride),) if stride > 1 else ()),
        Layer(inner, wide, width, 1, count=blocks - 1),
    )


RESNET50: Final = (
    Layer(224, 3, 64, 7, 2),
    *_stage(56, 64, 64, 3, 1),
    *_stage(56, 256, 128, 4, 2),
    *_stage(28, 512, 256, 6, 2),
    *_stage(14, 1024, 512, 3, 2),
)


def _in_groups(
    side: int, widths: tuple[int, ...], depths: tuple[int, ...], group: int, *, strided: int = 0
) -> tuple[Layer, ...]:
    """The 3x3 convolutions of stages in groups of `group` channels, on maps of `side` at first.

    From stage `strided` on the first of a stage has stride 2.
    """
    layers: list[Layer] = []
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage >= strided:
            layers.append(Layer(side, width, width, stride=2, groups=width // group))
            side //= 2
        count = depth - (stage >= strided)
        if count:
            layers.append(Layer(side, width, width, count=count, groups=width // group))
    return tuple(layers)


def _resnext(group: int, depths: tuple[int, ...]) -> tuple[Layer, ...]:
    """The convolutions in 32 groups, of `group` channels in the first stage."""
    return tuple(
        replace(each, groups=32)
        for each in _in_groups(56, tuple(32 * group << i for i in range(4)), depths, 1, strided=1)
    )


RESNEXT50: Final = _resnext(4, (3, 4, 6, 3))
RESNEXT101: Final = _resnext(8, (3, 4, 23, 3))
REGNET_Y_400MF: Final = _in_groups(112, (48, 104, 208, 440), (1, 3, 6, 6), 8)
REGNET_Y_3_2GF: Final = _in_groups(112, (72, 216, 576, 1512), (2, 5, 13, 1), 24)
REGNET_Y_16GF: Final = _in_groups(112, (224, 448, 1232, 3024), (2, 4, 11, 1), 112)
# Of EfficientNet-v2-S, Res2Net-50, HRNet-W18 and DenseNet-121.
FEW_CHANNELS: Final = (
    Layer(224, 3, 32, stride=2), Layer(192, 24, 24), Layer(192, 24, 96, stride=2),
    Layer(96, 48, 192, stride=2), Layer(56, 18, 18), Layer(28, 36, 36), Layer(56, 26, 26),
    Layer(56, 128, 32),
)  # fmt: skip
NETWORKS: Final = {
    "vgg16": VGG16,
    "resnet50": RESNET50,
    "resnext50": RESNEXT50,  # 32x4d
    "resnext101": RESNEXT101,  # 32x8d
    "regnet_y_400mf": REGNET_Y_400MF,
    "regnet_y_3_2gf": REGNET_Y_3_2GF,
    "regnet_y_16gf": REGNET_Y_16GF,
    "few channels": FEW_CHANNELS,
}
GROUPED: Final = ("resnext50", "resnext101", "regnet_y_400mf", "regnet_y_3_2gf", "regnet_y_16gf")
SMALL: Final = Layer(7, 8, 16, 3, 2)  # which tests compare with cuDNN's counterpart
SMALL_GROUPED: Final = Layer(7, 64, 64, 3, 2, groups=16)


GEOMETRY: Final = {each.name for each in fields(Layer)}


class Tensors:
    """Random maps, weights and gradients of a layer.

    Our kernels read maps that the kernels before them rounded to TF32. The peer and float64 read
    `x`, `dy` and `weight`, which are not rounded.
    """

    def __init__(
        self, o: Operands, samples: int, layer: Layer, dtype: torch.dtype, precision: str
    ) -> None:
        k, c, taps, _ = layer.shape
        self.layer, self.settings = layer, {**layer.settings, "precision": precision}
        x = (samples, layer.side, layer.side, layer.in_channels)
        dy = (samples, layer.out_side, layer.out_side, layer.out_channels)
        self.x, self.dy = (
            o.randn(*maps, dtype=dtype, beside=self.beside(maps[3])) for maps in (x, dy)
        )
        self.weight, self.bias = o.randn(k, c, taps, taps) * (c * taps**2) ** -0.5, o.randn(k)
        packs = {"groups": layer.groups, "dtype": dtype, "precision": precision}
        shapes = packed_shape(layer.shape, **packs), packed_shape_grad_input(layer.shape, **packs)
        self.packed, self.packed_grad = (
            torch.full(shape, nan, dtype=dtype, device=o.device) for shape in shapes
        )
        if o.holds_values:
            packing = {"groups": layer.groups, "precision": precision}
            pack_weight(self.weight, self.packed, **packing)
            pack_weight_grad_input(self.weight, self.packed_grad, **packing)
        # In bfloat16 the values themselves, where they lie.
        self.rounded_x = stored_reference(self.x, dtype, precision)
        self.rounded_dy = stored_reference(self.dy, dtype, precision)
        self.native = self.weight.to(dtype, memory_format=torch.channels_last)

    def beside(self, channels: int) -> Shape:
        """The channels before and after a map that is padded; () for others."""
        return (0, self.layer.pitch(channels) - channels) if self.layer.padded else ()

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor, which: int) -> Tensor:
        """cuDNN's gradient of the input (0) or of the weight (1)."""
        geometry = self.layer.settings
        pairs = [geometry[name] for name in ("stride", "padding", "dilation")]
        wanted = [which == 0, which == 1, False]
        result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            dy, x, weight, None, *pairs, False, (0, 0), self.layer.groups, wanted
        )
        return result[which]


def exactly(compute: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Compute in float64, without cuDNN's search for the fastest algorithm."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        return compute(*(operand.double() for operand in operands))


def few(maps: Tensor) -> Tensor:
    """The first samples, channels first."""
    return nchw(maps)[:EXACT_SAMPLES]


def of_layer(make: Callable[..., Launch]) -> Callable[..., Launch]:
    """A maker for a case, from one that takes a layer's tensors in place of a size.

    The layer is a setting, or one of maps of the size whose fields are settings.
    """

    @wraps(make)
    def made(
        o: Operands, size: Shape, layer: Layer | None = None, dtype: torch.dtype = BF16,
        precision: str = "tf32", channels: int = 0, **settings: Any,
    ) -> Launch:  # fmt: skip
        if layer is None:
            changes = {name: settings.pop(name) for name in GEOMETRY if name in settings}
            layer = Layer(size[1], channels or size[-1], size[-1], **changes)
        return make(o, Tensors(o, size[0], layer, dtype, precision), **settings)

    return made


def measured(
    kernel: str,
    network: str,
    peer: str = "cuDNN",
    *,
    of: str = "",
    moments: bool = False,
    small: Layer = SMALL,
    make: Callable[..., Launch] | None = None,
    **settings: Any,
) -> list[Measured]:
    """A row of every layer but the first, where nothing needs the gradient of its input.

    With `moments` of the layers that leave any.
    """
    return [
        Measured(
            kernel,
            (SAMPLES,),
            {"layer": layer, **settings},
            (3,),
            {"layer": small},
            make,
            of or network,
            layer.name,
            peer,
            layer.count,
        )
        for layer in NETWORKS[network]
        if not ("grad_input" in kernel and layer.in_channels == 3)
        and not (moments and layer.cells(torch.bfloat16) is None)
    ]


def measured_in_groups(
    kernel: str, make: Callable[..., Launch] | None = None, **settings: Any
) -> list[Measured]:
    """Rows of the convolutions in groups of networks that have such."""
    return [
        row
        for network in GROUPED
        for row in measured(kernel, network, small=SMALL_GROUPED, make=make, **settings)
    ]
