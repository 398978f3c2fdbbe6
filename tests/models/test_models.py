"""The models: names and sizes of their published forms, shapes, and a depth that still trains."""

import copy
import hashlib
import math

import pytest
import torch
from torch import Tensor

import tvdnn.nn
from tvdnn import models
from tvdnn.errors import InputError
from tvdnn.trace.trace import trace

# Caffe's for the original AlexNet and GoogLeNet and for NiN, Cadene's for Inception-v4,
# torchvision's for the heads' networks without their heads; OverFeat's paper says 145 M of its fast
# model.
NUM_PARAMS = {
    "lenet5": 61_706,
    "alexnet_lrn": 60_965_224,
    "overfeat": 145_920_872,
    "nin": 7_595_176,
    "googlenet": 6_624_904,
    "googlenet_lrn": 6_998_552,
    "inception_v3": 23_834_568,
    "inception_v4": 42_679_816,
    "unet": 31_037_698,
}

# Of torchvision's networks: their parameters, and a digest of the names and shapes of their state,
# heads included (torchvision 0.28).
TORCHVISION = {
    "alexnet": (61_100_840, "9c198ebdae1863e4"),
    "vgg11": (132_863_336, "cb3dc23f2a13e182"),
    "vgg13": (133_047_848, "67c1dc8b57fde74b"),
    "vgg16": (138_357_544, "35c4623e0cd4a39d"),
    "vgg19": (143_667_240, "4723255af8f6c485"),
    "vgg11_bn": (132_868_840, "8b6717e727c0ecf9"),
    "vgg13_bn": (133_053_736, "f6b0597d18a7e4d2"),
    "vgg16_bn": (138_365_992, "347371586a8ea365"),
    "vgg19_bn": (143_678_248, "fc3ff6fab2b5cc09"),
    "googlenet": (13_004_888, "7f541ca29410efb1"),
    "inception_v3": (27_161_264, "aab0ac2cbaf84aa2"),
    "resnet18": (11_689_512, "84fb10d9c6905a1c"),
    "resnet34": (21_797_672, "28f9096d51307499"),
    "resnet50": (25_557_032, "d7e4f8bb0a536344"),
    "resnet101": (44_549_160, "02c0f34f4842751f"),
    "resnet152": (60_192_808, "685c66205bc823aa"),
    "resnext50_32x4d": (25_028_904, "e3bad165c034e60f"),
    "resnext101_32x8d": (88_791_336, "da7dd7525807e2ee"),
    "wide_resnet50_2": (68_883_240, "41203d1d536c02ed"),
    "wide_resnet101_2": (126_886_696, "4f088c0a152b8f5c"),
    "densenet121": (7_978_856, "aa0fd9923b0003b8"),
    "densenet161": (28_681_000, "82d337d48f910d3a"),
    "densenet169": (14_149_480, "e2d0f02d9c0ce650"),
    "densenet201": (20_013_928, "0d234ad7e9a31b95"),
}
HEADS = {"googlenet": {"aux_logits": True}, "inception_v3": {"aux_logits": True}}

# One network of each kind: others differ in counts alone.
KINDS = (
    "lenet5",
    "alexnet",
    "alexnet_lrn",
    "overfeat",
    "nin",
    "vgg11",
    "vgg11_bn",
    "vgg116",
    "googlenet",
    "googlenet_lrn",
    "inception_v3",
    "inception_v4",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "wide_resnet50_2",
    "densenet121",
)

NUM_CONVS = {"vgg16": 13, "vgg19": 16, "vgg116": 113, "vgg216": 213, "vgg316": 313, "vgg416": 413}


def on_meta(name: str, **options: object) -> torch.nn.Module:
    with torch.device("meta"):
        return models.by_name(name, **options)


LOGITS = {"lenet5": (2, 10), "unet": (2, 512, 512, 2)}


@pytest.mark.parametrize("name", [*KINDS, "unet"])
def test_logits_of_default_images(name: str) -> None:
    net = on_meta(name)
    x = torch.empty(2, *models.image_shape(name), device="meta")
    network = trace(net, (x,), name=name)
    (output,) = network.outputs
    assert network.values[output].shape == LOGITS.get(name, (2, 1000))
    assert network.gather([output]) == output
    assert set(network.params) == set(net.state_dict())


@pytest.mark.parametrize("name", NUM_PARAMS)
def test_number_of_parameters(name: str) -> None:
    assert sum(param.numel() for param in on_meta(name).parameters()) == NUM_PARAMS[name]


@pytest.mark.parametrize("name", TORCHVISION)
def test_names_and_shapes_are_torchvisions(name: str) -> None:
    net = on_meta(name, **HEADS.get(name, {}))
    text = "\n".join(f"{key} {tuple(value.shape)}" for key, value in net.state_dict().items())
    count = sum(param.numel() for param in net.parameters())
    assert (count, hashlib.sha256(text.encode()).hexdigest()[:16]) == TORCHVISION[name]


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "googlenet", "densenet121", "vgg11_bn"])
def test_initial_weights_and_results_are_torchvisions(name: str) -> None:
    try:
        from torchvision import models as theirs  # noqa: PLC0415 (an extra)
    except (ImportError, RuntimeError) as error:  # the latter where its build is of another torch
        pytest.skip(f"torchvision cannot be imported: {error}")
    options = HEADS.get(name, {})
    settings = {**options, "init_weights": True} if name == "googlenet" else options
    torch.manual_seed(0)
    mine = models.by_name(name, **options)
    torch.manual_seed(0)
    twin = getattr(theirs, name)(**settings)
    for key, value in twin.state_dict().items():
        assert torch.equal(mine.state_dict()[key], value), key
    x = torch.randn(2, 3, 64, 64)
    exact = twin.eval()(x)
    torch.testing.assert_close(with_torchs_functions(mine)(x), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("depth", "third"), [(1920, 596), (140, 2), (137, 1)])
def test_deep_resnets_have_superneurons_counts(depth: int, third: int) -> None:
    """6, 32, n and 6 bottlenecks of three convolutions, the first one and the classifier."""
    net = on_meta(f"resnet{depth}", width=1 / 64)
    layers = (net.layer1, net.layer2, net.layer3, net.layer4)
    assert [len(layer) for layer in layers] == [6, 32, third, 6]
    convs = [m for name, m in net.named_modules() if ".conv" in name]
    assert depth <= len(convs) + 2 < depth + 3


@pytest.mark.parametrize("upsample", [False, True])
def test_unets_logits_are_of_pixels(upsample: bool) -> None:
    net = on_meta("unet", width=0.1, num_classes=7, in_channels=2, upsample=upsample)
    assert net(torch.empty(1, 2, 64, 32, device="meta")).shape == (1, 7, 64, 32)


def test_heads_give_logits_while_training() -> None:
    for name, count in (("googlenet", 3), ("inception_v3", 2)):
        net = on_meta(name, width=0.1, num_classes=7, aux_logits=True)
        x = torch.empty(2, *models.image_shape(name), device="meta")
        outputs = trace(net, (x,)).outputs
        assert len(outputs) == count
        assert [y.shape for y in net(x)] == [(2, 7)] * count
        assert net.eval()(x).shape == (2, 7)


@pytest.mark.parametrize("name", NUM_CONVS)
def test_number_of_convolutions(name: str) -> None:
    convs = [m for m in on_meta(name).modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convs) == NUM_CONVS[name]


def test_width_classes_and_channels() -> None:
    for name in KINDS:
        net = on_meta(name, width=0.1, num_classes=7, in_channels=2)
        side = models.image_size(name)
        assert net(torch.empty(1, 2, side, side, device="meta")).shape == (1, 7)
        count = sum(param.numel() for param in net.parameters())
        assert count < sum(param.numel() for param in on_meta(name).parameters()) / 10


def test_names_are_forgiving_and_errors_list_them() -> None:
    assert isinstance(models.by_name("VGG-11", width=0.01), torch.nn.Module)
    assert models.image_size("AlexNet-LRN") == 227
    assert models.image_shape("ResNet-500") == (3, 224, 224)
    with pytest.raises(InputError, match="no network named 'resnet20'; there are lenet5, alexnet"):
        models.by_name("resnet20")


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


@pytest.mark.parametrize(("name", "lr"), [("vgg16", 1e-3), ("vgg16", 1e-2), ("vgg416", 1e-2)])
def test_deep_networks_stay_finite(name: str, lr: float) -> None:
    torch.manual_seed(0)
    net = with_torchs_functions(models.by_name(name, width=0.125, num_classes=10))
    x, y = torch.randn(2, 3, 32, 32), torch.arange(2)
    losses = losses_of(net, x, y, steps=20, lr=lr)
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]


def test_gradients_survive_a_hundred_layers() -> None:
    """The image has its full size. Little is lost at the borders of the padded maps."""
    torch.manual_seed(0)
    net = models.vgg116(width=0.25, num_classes=10)
    x = torch.randn(1, 3, 224, 224)
    with_torchs_functions(net)(x).square().sum().backward()
    first, last = (net.features[i].weight.grad.norm() for i in (0, -3))
    assert 1e-3 < first / last < 1e3


@pytest.mark.parametrize(
    ("name", "side", "width"), [("lenet5", 32, 1 / 4), ("alexnet_lrn", 67, 1 / 8)]
)
def test_training_follows_torch(name: str, side: int, width: float) -> None:
    torch.manual_seed(0)
    net = models.by_name(name, width=width, num_classes=10)
    if name == "alexnet_lrn":
        net.avgpool = tvdnn.nn.AdaptiveAvgPool2d(6)
    net.eval()
    twin = with_torchs_functions(copy.deepcopy(net))
    x, y = torch.randn(8, models.image_shape(name)[0], side, side), torch.arange(8)
    ours, exact = (losses_of(each, x, y, steps=40, lr=0.03) for each in (net, twin))
    assert ours == pytest.approx(exact, rel=1e-3)
    assert ours[-1] < 0.95 * ours[0]
