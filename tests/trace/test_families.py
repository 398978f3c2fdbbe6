"""Blocks as families of published networks write them: traced as they are, gradients as torch's.

Each is written like its namesake in torchvision or timm, at a fraction of the width.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.exact import Functional
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.engine import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

SHAPE = (5, 3, 6, 6)
CHUNK_SIZE = 600  # bytes: a sample a section
RTOL, ATOL = 1e-4, 1e-5
Norm = partial(nn.BatchNorm2d, eps=0.1)  # maps this small have small variances


def joined(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, Norm(layers[-1].out_channels), nn.ReLU(inplace=True))


def shuffled(x: Tensor, groups: int) -> Tensor:
    samples, channels, height, width = x.size()
    x = x.view(samples, groups, channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(samples, channels, height, width)


class ShuffleUnit(nn.Module):
    """ShuffleNet's second version: half of the channels pass by, then both halves take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 1)
        depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.branch = nn.Sequential(
            joined(nn.Conv2d(8, 8, 1, bias=False)), depthwise, Norm(8), joined(nn.Conv2d(8, 8, 1))
        )
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.first(x).chunk(2, dim=1)
        x = shuffled(torch.cat((left, self.branch(right)), dim=1), 2)
        y: Tensor = self.last(x.mean([2, 3]))
        return y


class Transformed(nn.Module):
    """GoogLeNet's and Inception's change of their input for weights from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 6)

    def forward(self, x: Tensor) -> Tensor:
        channels = [torch.unsqueeze(x[:, i], 1) * (0.229 / 0.5) + 0.1 * i for i in (0, 1, -1)]
        return torch.flatten(self.conv(torch.cat(channels, 1)), 1)


class DenseLayer(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.relu = Norm(channels), nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(channels, 8, 3, padding=1, bias=False)

    def forward(self, maps: Tensor | list[Tensor]) -> Tensor:
        earlier = [maps] if isinstance(maps, Tensor) else maps
        new: Tensor = self.conv(self.relu(self.norm(torch.cat(earlier, 1))))
        return functional.dropout(new, p=0.0, training=self.training)


class DenseBlock(nn.ModuleDict):
    """DenseNet's: a dictionary of layers, each of which is given the list of all maps."""

    def __init__(self) -> None:
        super().__init__({f"denselayer{i}": DenseLayer(8 * i) for i in (1, 2)})
        self.stem = nn.Conv2d(3, 8, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for name, layer in self.items():
            if name != "stem":
                features.append(layer(features))
        out = functional.relu(torch.cat(features, 1), inplace=True)
        return torch.flatten(functional.adaptive_avg_pool2d(out, (1, 1)), 1)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.scale = nn.ReLU(), nn.Hardsigmoid(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        scale: Tensor = self.scale(self.fc2(self.activation(self.fc1(self.avgpool(x)))))
        return scale * x


def inverted_residual() -> nn.Sequential:
    """MobileNet's third version, and the parts of it that EfficientNet and RegNet have."""
    depthwise = nn.Conv2d(16, 16, 5, stride=2, padding=2, groups=16, bias=False)
    expand = (nn.Conv2d(3, 16, 1, bias=False), Norm(16), nn.Hardswish(inplace=True))
    squeeze = (SqueezeExcitation(16, 8), nn.Conv2d(16, 8, 1, bias=False), Norm(8))
    return nn.Sequential(*expand, depthwise, Norm(16), nn.Hardswish(), *squeeze, nn.Flatten())


class ASPPPooling(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        for layer in self:
            x = layer(x)
        return functional.interpolate(x, size=size, mode="bilinear", align_corners=False)


class ASPP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        dilated = (nn.Conv2d(8, 8, 3, padding=rate, dilation=rate, bias=False) for rate in (2, 3))
        pooled = ASPPPooling(nn.AdaptiveAvgPool2d(1), *joined(nn.Conv2d(8, 8, 1, bias=False)))
        branches = [joined(nn.Conv2d(8, 8, 1, bias=False)), *map(joined, dilated), pooled]
        self.convs = nn.ModuleList(branches)
        self.project = nn.Sequential(joined(nn.Conv2d(32, 8, 1, bias=False)), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for conv in self.convs:
            found.append(conv(x))
        y: Tensor = self.project(torch.cat(found, dim=1))
        return y


class Getter(nn.ModuleDict):
    """Returns the maps of some of its layers, by name."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = OrderedDict()
        for name, layer in self.items():
            x = layer(x)
            found["out" if name == "layer4" else "aux"] = x
        return found


class Segmentation(nn.Module):
    """DeepLabV3, and FCN as its auxiliary head: logits of all pixels by name."""

    def __init__(self) -> None:
        super().__init__()
        layer4 = nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3, padding=2, dilation=2))
        self.backbone = Getter({"layer3": nn.Conv2d(3, 8, 3, 2, 1), "layer4": layer4})
        self.classifier = nn.Sequential(ASPP(), nn.Conv2d(8, 4, 1))
        fcn = joined(nn.Conv2d(8, 8, 3, padding=1, bias=False))
        self.aux_classifier = nn.Sequential(fcn, nn.Dropout(0.0), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        size, features = x.shape[-2:], self.backbone(x)
        resize = partial(functional.interpolate, size=size, mode="bilinear", align_corners=False)
        result = OrderedDict()
        result["out"] = resize(self.classifier(features["out"]))
        result["aux"] = resize(self.aux_classifier(features["aux"]))
        return result


class LRASPP(nn.Module):
    """MobileNet's head for pixels: a gate and two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.cbr = joined(nn.Conv2d(16, 8, 1, bias=False))
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1, bias=False), nn.Sigmoid()
        )
        self.low_classifier, self.high_classifier = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        resize = partial(functional.interpolate, mode="bilinear", align_corners=False)
        low = self.low(image)
        high = self.high(low)
        x = resize(self.cbr(high) * self.scale(high), size=low.shape[-2:])
        out = self.low_classifier(low) + self.high_classifier(x)
        return {"out": resize(out, size=image.shape[-2:])}


class TimmBlock(nn.Module):
    """timm's residual block, whose optional parts are absent or identities."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), Norm(8)
        self.drop_block, self.act1, self.aa = nn.Identity(), nn.ReLU(inplace=True), nn.Identity()
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, 2, 1, bias=False), Norm(8)
        self.se = self.drop_path = None
        pool = nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False)
        self.downsample = nn.Sequential(pool, nn.Conv2d(3, 8, 1, bias=False), Norm(8))
        self.act2, self.pool, self.flatten = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.aa(self.act1(self.drop_block(self.bn1(self.conv1(x)))))
        x = self.bn2(self.conv2(x))
        if self.se is not None:
            x = self.se(x)
        if self.downsample is not None:
            shortcut = self.downsample(shortcut)
        x += shortcut
        y: Tensor = self.flatten(self.pool(self.act2(x)))
        return y


def squares(outputs: Any) -> Tensor:
    """The sum of the squares of a network's outputs."""
    parts = outputs.values() if isinstance(outputs, dict) else [outputs]
    return sum((part.square().sum() for part in parts), torch.zeros(()))


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
@pytest.mark.parametrize(
    "make",
    [
        *(ShuffleUnit, Transformed, DenseBlock, inverted_residual),
        *(Segmentation, LRASPP, TimmBlock),
    ],
)
def test_gradients_are_torchs(make: Callable[[], nn.Module], policy: str) -> None:
    torch.manual_seed(11)
    net, x = make(), torch.randn(SHAPE)
    twin = copy.deepcopy(net).double()
    virtual = virtualize(net, x, dtype="fp32", policy=policy, chunk_size=CHUNK_SIZE)
    outputs, exact = virtual(x), twin(x.double())
    assert type(outputs) is type(exact)
    assert not isinstance(exact, dict) or list(outputs) == list(exact)
    for made in (outputs, exact):
        squares(made).backward()
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=RTOL, atol=ATOL)


class Flat(nn.Module):
    """Elementwise functions of one pixel's channels behind a view: read once, and read twice."""

    def __init__(self, function: Callable[[Tensor], Tensor], *, pools: bool) -> None:
        super().__init__()
        one_pixel = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1))
        self.maps = one_pixel if pools else nn.Conv2d(3, 8, 6)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.maps(x).flatten(1)
        return self.function(self.function(y) + 2 * y)


@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("function", [torch.relu, functional.silu, torch.tanh])
def test_functions_of_a_pixel_behind_a_view(
    function: Callable[[Tensor], Tensor], pools: bool
) -> None:
    torch.manual_seed(11)
    net = nn.Sequential(Flat(function, pools=pools), nn.Linear(8, 4))
    (batch,) = random_batches(1, SHAPE, 4, seed=6)
    assert_gradients_are_torchs(net, batch, policy="keep", chunk_size=CHUNK_SIZE, atol=1e-6)


@pytest.mark.parametrize(
    "way",
    [
        lambda x: x.view(x.size(0), x.size(1), -1).mean(dim=2),
        lambda x: x.flatten(2).transpose(1, 2).mean(1),
        lambda x: x.permute(0, 2, 3, 1).mean((1, 2)),
        lambda x: x.mean((-1, -2), keepdim=True).flatten(1),
    ],
)
def test_means_of_all_pixels(way: Callable[[Tensor], Tensor]) -> None:
    network = trace(Functional(lambda _, x: way(x)), [torch.empty(SHAPE)])
    assert [op.kind for op in network.ops if op.kind != "view"] == ["adaptive_avg_pool2d"]
    assert network.values[network.outputs[0]].shape == (5, 3)


@pytest.mark.parametrize(
    "way",
    [
        lambda x: torch.relu(x.flatten(2)).mean(2),
        lambda x: torch.relu(x[:, 0]).flatten(1),
        lambda x: x[:, 0] * 2,
        lambda x: x.flatten(2) * 2,
        lambda x: x.mean(1),
    ],
)
def test_other_uses_of_pixels(way: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    net = virtualize(Functional(lambda _, x: way(x)), x)
    torch.testing.assert_close(net(x), way(x))


def test_pooling_pixels_as_one_axis_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="max_pool2d of 3 dimensions"):
        trace(Functional(lambda _, x: functional.max_pool2d(x.flatten(2), 2)), [torch.empty(SHAPE)])
