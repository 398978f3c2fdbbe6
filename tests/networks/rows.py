"""Networks over rows [N, C, L], and adaptive and power-average poolings."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks import remap
from tests.networks.case import EXACT, HALF, LEAST, TENSOR, NetworkCase

SHAPE, CLASSES = (3, 24), 3


class Rows(nn.Module):
    """Logits of layers over [N, C, L]."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
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


def conv2() -> nn.Module:
    return nn.Conv1d(6, 4, 3)


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


def every_layer() -> Rows:
    layers = (conv(padding=1), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), conv2())
    return Rows(*layers, nn.InstanceNorm1d(4), nn.AdaptiveMaxPool1d(4))


POOLS: dict[str, remap.Way] = {
    "adaptive maxima": lambda x: functional.adaptive_max_pool2d(torch.relu(x), (2, 3)),
    "adaptive maxima of rows": lambda x: functional.adaptive_max_pool2d(torch.relu(x), (4, None)),
    "uneven adaptive maxima": nn.AdaptiveMaxPool2d(5),
    "more means than pixels": nn.AdaptiveAvgPool2d((4, 9)),
    "norms of windows": nn.LPPool2d(2, 3, 2),
    "cubes": lambda x: functional.lp_pool2d(torch.relu(x) + 1, 3.0, (2, 3), ceil_mode=True),
}


def case(make: Callable[[], nn.Module], **options: object) -> NetworkCase:
    return NetworkCase(make, SHAPE, batch=4, classes=CLASSES, **options)  # type: ignore[arg-type]


def of_layers(name: str) -> Rows:
    return Rows(*LAYERS[name]())


NETWORKS = {
    **{name: case(partial(of_layers, name)) for name in LAYERS},
    "every layer": case(every_layer, runs=(EXACT, TENSOR, HALF)),
    "every layer, in the least memory": case(
        every_layer, runs=(EXACT,), policies=(LEAST,), gradients=False
    ),
    **{name: NetworkCase(partial(remap.Returns, way), remap.SHAPE) for name, way in POOLS.items()},
}
