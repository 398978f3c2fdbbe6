"""The models: names and sizes of their published forms, shapes, and a depth that still trains."""

import copy
import math

import pytest
import torch
from torch import Tensor

import tvdnn.nn
from tvdnn import models
from tvdnn.errors import InputError
from tvdnn.trace import trace

# torchvision's; Caffe's for the original AlexNet; OverFeat's paper says 145 M of its fast model.
NUM_PARAMS = {
    "lenet5": 61_706,
    "alexnet": 61_100_840,
    "alexnet_lrn": 60_965_224,
    "overfeat": 145_920_872,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
}

# The layers of torchvision's networks that hold parameters.
TORCHVISION_LAYERS = {
    "alexnet": ((0, 3, 6, 8, 10), (1, 4, 6)),
    "vgg11": ((0, 3, 6, 8, 11, 13, 16, 18), (0, 3, 6)),
    "vgg13": ((0, 2, 5, 7, 10, 12, 15, 17, 20, 22), (0, 3, 6)),
    "vgg16": ((0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28), (0, 3, 6)),
    "vgg19": ((0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34), (0, 3, 6)),
}

NUM_CONVS = {"vgg16": 13, "vgg19": 16, "vgg116": 113, "vgg216": 213, "vgg316": 313, "vgg416": 413}


def on_meta(name: str, **options: object) -> torch.nn.Module:
    with torch.device("meta"):
        return models.by_name(name, **options)


@pytest.mark.parametrize("name", models.names())
def test_logits_of_default_images(name: str) -> None:
    net = on_meta(name)
    x = torch.empty(2, *models.image_shape(name), device="meta")
    network = trace(net, (x,), name=name)
    (output,) = network.outputs
    assert network.values[output].shape == (2, 10 if name == "lenet5" else 1000)
    assert not network.returns_tuple
    assert list(network.params) == list(net.state_dict())


@pytest.mark.parametrize("name", NUM_PARAMS)
def test_number_of_parameters(name: str) -> None:
    assert sum(param.numel() for param in on_meta(name).parameters()) == NUM_PARAMS[name]


@pytest.mark.parametrize("name", TORCHVISION_LAYERS)
def test_names_are_torchvisions(name: str) -> None:
    features, classifier = TORCHVISION_LAYERS[name]
    layers = [f"features.{i}" for i in features] + [f"classifier.{i}" for i in classifier]
    expected = [f"{layer}.{param}" for layer in layers for param in ("weight", "bias")]
    assert list(on_meta(name).state_dict()) == expected


@pytest.mark.parametrize("name", NUM_CONVS)
def test_number_of_convolutions(name: str) -> None:
    convs = [m for m in on_meta(name).modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convs) == NUM_CONVS[name]


def test_width_classes_and_channels() -> None:
    for name in models.names():
        net = on_meta(name, width=0.1, num_classes=7, in_channels=2)
        side = models.image_size(name)
        assert net(torch.empty(1, 2, side, side, device="meta")).shape == (1, 7)
        count = sum(param.numel() for param in net.parameters())
        assert count < sum(param.numel() for param in on_meta(name).parameters()) / 10


def test_names_are_forgiving_and_errors_list_them() -> None:
    assert isinstance(models.by_name("VGG-11", width=0.01), torch.nn.Module)
    assert models.image_size("AlexNet-LRN") == 227
    with pytest.raises(InputError, match="no network named 'resnet50'; there are lenet5, alexnet"):
        models.by_name("resnet50")


def losses_of(net: torch.nn.Module, x: Tensor, y: Tensor, *, steps: int, lr: float) -> list[float]:
    """Losses of SGD steps on one batch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    criterion = tvdnn.nn.CrossEntropyLoss()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_torchs_functions(net: torch.nn.Module) -> torch.nn.Module:
    """The network over the same parameters, every layer as torch's own function."""
    return torch.fx.symbolic_trace(net.eval())


@pytest.mark.parametrize("lr", [1e-3, 1e-2])
@pytest.mark.parametrize("name", ["vgg16", "vgg116", "vgg416"])
def test_deep_networks_stay_finite(name: str, lr: float) -> None:
    torch.manual_seed(0)
    net = with_torchs_functions(models.by_name(name, width=0.125, num_classes=10))
    x, y = torch.randn(2, 3, 32, 32), torch.arange(2)
    losses = losses_of(net, x, y, steps=20, lr=lr)
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]


def test_gradients_survive_a_hundred_layers() -> None:
    """At the full image size, where little is lost at the borders of the padded maps."""
    torch.manual_seed(0)
    net = models.vgg116(width=0.25, num_classes=10)
    x = torch.randn(1, 3, 224, 224)
    with_torchs_functions(net)(x).square().sum().backward()
    first, last = (net.features[i].weight.grad.norm() for i in (0, -3))
    assert 1e-3 < first / last < 1e3


@pytest.mark.parametrize(("name", "side"), [("lenet5", 32), ("alexnet_lrn", 67)])
def test_training_follows_torch(name: str, side: int) -> None:
    torch.manual_seed(0)
    net = models.by_name(name, width=0.25, num_classes=10)
    if name == "alexnet_lrn":
        net.avgpool = tvdnn.nn.AdaptiveAvgPool2d(6)
    net.eval()
    twin = with_torchs_functions(copy.deepcopy(net))
    x, y = torch.randn(8, models.image_shape(name)[0], side, side), torch.arange(8)
    ours, exact = (losses_of(each, x, y, steps=40, lr=0.03) for each in (net, twin))
    assert ours == pytest.approx(exact, rel=1e-3)
    assert ours[-1] < 0.95 * ours[0]
