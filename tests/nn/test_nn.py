"""The layers against their torch.nn twins in float64: results, gradients, layouts and refusals."""

import copy
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.accuracy import torchs_precision
from tvdnn import nn
from tvdnn.errors import InputError
from tvdnn.nn import (
    activation,
    batch_norm,
    conv,
    conv_depthwise,
    conv_transpose,
    dropout,
    group_norm,
    layer_norm,
    linear,
    local_response_norm,
    loss,
    pool,
    prelu,
    softmax,
    unary,
)
from tvdnn.nn.conv import conv2d
from tvdnn.nn.loss import cross_entropy
from tvdnn.nn.pool import max_pool2d

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}


def shifted(layer: torch.nn.Module) -> torch.nn.Module:
    """The layer with parameters that are neither ones nor zeros."""
    for param in layer.parameters():
        torch.nn.init.normal_(param, 0.5)
    return layer


LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "conv": (lambda: nn.Conv2d(3, 8, 3, padding=1), (2, 3, 9, 7)),
    "conv one channel": (lambda: nn.Conv2d(1, 5, 5), (3, 1, 11, 8)),
    "conv strided": (lambda: nn.Conv2d(4, 6, (5, 3), stride=(3, 2), padding=(2, 0)), (2, 4, 13, 8)),
    "conv dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=(2, 3), bias=False), (1, 4, 9, 12)),
    "conv grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 6, 6)),
    "conv depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, stride=2), (2, 4, 7, 7)),
    "conv depthwise, eights": (
        lambda: nn.Conv2d(16, 16, (7, 5), stride=(2, 1), padding=3, groups=16),
        (2, 16, 7, 6),
    ),
    "conv same": (lambda: nn.Conv2d(3, 4, 3, padding="same", dilation=2), (2, 3, 7, 6)),
    "conv same, uneven": (lambda: nn.Conv2d(3, 4, (2, 4), padding="same"), (2, 3, 7, 6)),
    "conv valid": (lambda: nn.Conv2d(3, 4, 2, padding="valid"), (2, 3, 7, 6)),
    "conv reflect": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 7, 6)),
    "conv transposed": (lambda: nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 7)),
    "conv transposed, strided": (
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=2, padding=(1, 0), output_padding=(1, 0)),
        (2, 4, 5, 7),
    ),
    "conv transposed, grouped": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=3, groups=2, dilation=2, bias=False),
        (2, 4, 5, 3),
    ),
    "relu": (nn.ReLU, (2, 5, 3, 7)),
    "relu of features": (nn.ReLU, (3, 11)),
    "leaky relu": (lambda: nn.LeakyReLU(0.2), (2, 5, 3, 7)),
    "leaky relu, falling": (lambda: nn.LeakyReLU(-0.2), (2, 5, 3, 7)),
    "relu6": (nn.ReLU6, (2, 5, 3, 7)),
    "elu": (lambda: nn.ELU(0.7), (2, 5, 3, 7)),
    "silu": (nn.SiLU, (2, 5, 3, 7)),
    "gelu": (nn.GELU, (2, 5, 3, 7)),
    "gelu by tanh": (lambda: nn.GELU("tanh"), (3, 11)),
    "sigmoid": (nn.Sigmoid, (2, 5, 3, 7)),
    "tanh": (nn.Tanh, (2, 5, 3, 7)),
    "hardswish": (nn.Hardswish, (2, 5, 3, 7)),
    "hardsigmoid": (nn.Hardsigmoid, (2, 5, 3, 7)),
    "prelu": (nn.PReLU, (2, 5, 3, 7)),
    "prelu by channel": (lambda: shifted(nn.PReLU(5)), (2, 5, 3, 7)),
    "prelu of features": (lambda: nn.PReLU(11, init=-0.3), (3, 11)),
    "mish": (nn.Mish, (2, 5, 3, 7)),
    "softplus": (lambda: nn.Softplus(2, threshold=1), (2, 5, 3, 7)),
    "celu": (lambda: nn.CELU(0.7), (2, 5, 3, 7)),
    "selu": (nn.SELU, (2, 5, 3, 7)),
    "log sigmoid": (nn.LogSigmoid, (2, 5, 3, 7)),
    "softsign": (nn.Softsign, (3, 11)),
    "hardtanh": (lambda: nn.Hardtanh(-0.5, 0.7), (2, 5, 3, 7)),
    "threshold": (lambda: nn.Threshold(0.1, -0.3), (2, 5, 3, 7)),
    "glu": (lambda: nn.GLU(1), (2, 6, 3, 7)),
    "max pool": (lambda: nn.MaxPool2d(2), (2, 5, 7, 8)),
    "max pool overlapping": (lambda: nn.MaxPool2d(3, stride=2, padding=1), (2, 5, 7, 8)),
    "max pool ceil": (lambda: nn.MaxPool2d((2, 3), 2, ceil_mode=True, dilation=2), (2, 5, 8, 9)),
    "avg pool": (lambda: nn.AvgPool2d(2), (2, 5, 7, 8)),
    "avg pool padded": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), (2, 5, 7, 8)),
    "avg pool inside": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 5, 7, 8)),
    "avg pool divisor": (lambda: nn.AvgPool2d((2, 3), divisor_override=5), (2, 5, 7, 8)),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d((3, 2)), (2, 5, 7, 8)),
    "adaptive pool, one side": (lambda: nn.AdaptiveAvgPool2d((None, 1)), (2, 5, 7, 8)),
    "linear": (lambda: nn.Linear(7, 5), (3, 7)),
    "linear of a sequence": (lambda: nn.Linear(7, 5, bias=False), (2, 3, 7)),
    "response norm": (lambda: nn.LocalResponseNorm(5, alpha=0.5, beta=0.75, k=2.0), (2, 9, 3, 4)),
    "response norm, even": (lambda: nn.LocalResponseNorm(2, alpha=0.5), (2, 3, 3, 4)),
    "group norm": (lambda: shifted(nn.GroupNorm(3, 6)), (2, 6, 3, 7)),
    "group norm of features": (lambda: shifted(nn.GroupNorm(3, 12, eps=1e-3)), (3, 12)),
    "group norm alone": (lambda: nn.GroupNorm(1, 5, affine=False), (2, 5, 3, 7)),
    "instance norm": (lambda: shifted(nn.InstanceNorm2d(5, affine=True)), (2, 5, 3, 7)),
    "instance norm of rows": (lambda: nn.InstanceNorm1d(5), (2, 5, 7)),
    "layer norm": (lambda: shifted(nn.LayerNorm(7)), (2, 5, 3, 7)),
    "layer norm of features": (lambda: shifted(nn.LayerNorm(11, bias=False)), (3, 11)),
    "layer norm of samples": (lambda: shifted(nn.LayerNorm((5, 3, 7), eps=1e-3)), (2, 5, 3, 7)),
    "layer norm alone": (lambda: nn.LayerNorm((3, 7), elementwise_affine=False), (2, 5, 3, 7)),
    "batch norm": (lambda: nn.BatchNorm2d(9), (2, 9, 3, 4)),
    "batch norm, as it was": (lambda: nn.BatchNorm2d(9).eval(), (2, 9, 3, 4)),
    "batch norm, cumulative": (lambda: nn.BatchNorm2d(9, momentum=None), (2, 9, 3, 4)),
    "batch norm, bare": (
        lambda: nn.BatchNorm2d(9, affine=False, track_running_stats=False).eval(),
        (2, 9, 3, 4),
    ),
    "batch norm of features": (lambda: nn.BatchNorm1d(7), (5, 7)),
    "batch norm of sequences": (lambda: nn.BatchNorm1d(7, eps=0.1), (5, 7, 3)),
    "channel shuffle": (lambda: nn.ChannelShuffle(3), (2, 12, 3, 7)),
    "softmax": (lambda: nn.Softmax(1), (3, 11)),
    "softmax of pixels": (lambda: nn.Softmax(-3), (2, 5, 3, 7)),
    "log softmax": (lambda: nn.LogSoftmax(1), (2, 5, 3, 7)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), (2, 5, 3, 7)),
    "upsample bilinear": (lambda: nn.Upsample((7, 9), mode="bilinear"), (2, 5, 3, 7)),
    "upsample corners": (
        lambda: nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True),
        (2, 5, 4, 7),
    ),
    "flatten": (nn.Flatten, (2, 3, 4, 5)),
}


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    """No TF32 on a GPU: float32 results are held to float32's error."""
    with torchs_precision("fp32"):
        yield


def error(ours: Tensor, exact: Tensor) -> float:
    """RMS of the difference in units of the exact tensor's RMS."""
    assert ours.shape == exact.shape
    ours, exact = ours.detach().double().cpu(), exact.detach().double().cpu()
    return float(((ours - exact).square().mean() / exact.square().mean()).sqrt())


def twin_of(layer: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """torch's layer in float64 with the weights as `dtype` sees them."""
    twin = copy.deepcopy(layer)
    if type(layer).__module__.startswith("tvdnn"):
        twin.__class__ = type(layer).__mro__[1]
    with torch.no_grad():
        for name, param in twin.named_parameters():
            param.data = (param.to(dtype) if name == "weight" else param).double()
        for buffer in twin.buffers():
            buffer.data = buffer.double() if buffer.is_floating_point() else buffer
    return twin


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layer_matches_its_twin(
    name: str,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    device: torch.device,
    generator: torch.Generator,
) -> None:
    make, shape = LAYERS[name]
    if len(shape) != 4 and memory_format is torch.channels_last:
        pytest.skip("channels_last is a format of maps")
    if name == "conv reflect" and dtype is torch.bfloat16:
        pytest.skip("torch's own convolution wants weights of the input's type")
    layer = make().to(device)
    twin = twin_of(
        layer, dtype
    ).cpu()  # on CUDA, torch's padded average pooling errs in channels_last
    x = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    x = x.contiguous(memory_format=memory_format).requires_grad_()
    exact_x = x.detach().cpu().double().requires_grad_()

    y, exact_y = layer(x), twin(exact_x)
    dy = torch.randn(y.shape, generator=generator, device=device, dtype=dtype)
    y.backward(dy)
    exact_y.backward(dy.cpu().double())

    assert y.dtype == dtype
    assert x.grad is not None
    assert exact_x.grad is not None
    assert error(y, exact_y) <= TOLERANCE[dtype]
    assert error(x.grad, exact_x.grad) <= TOLERANCE[dtype]
    for param, exact in zip(layer.parameters(), twin.parameters(), strict=True):
        assert param.grad is not None
        assert exact.grad is not None
        assert param.grad.dtype == torch.float32
        assert error(param.grad, exact.grad) <= TOLERANCE[dtype]
    for buffer, exact in zip(layer.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(buffer.cpu().to(exact.dtype), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", LAYERS)
def test_what_follows_may_work_in_place(
    name: str, memory_format: torch.memory_format, device: torch.device
) -> None:
    """In a layer's own output, with torch's gradients; refused if these read what that was."""
    make, shape = LAYERS[name]
    torch.manual_seed(3)
    layer = make().to(device)
    twin = twin_of(layer, torch.float32).to(device)
    x = torch.randn(shape, device=device)
    x = x.contiguous(memory_format=memory_format) if len(shape) == 4 else x
    found = [
        grad_behind_a_change(each, x.to(dtype))
        for each, dtype in ((twin, torch.float64), (layer, torch.float32))
    ]
    exact, ours = found
    if exact is None:
        assert ours is None
    else:
        assert ours is not None
        assert error(ours, exact) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("shape", [(2, 1, 5, 4), (2, 4, 1, 1)], ids=["one channel", "one pixel"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "make",
    [
        lambda kinds, channels: kinds.Conv2d(channels, channels, 1),
        lambda kinds, channels: kinds.ConvTranspose2d(channels, channels, 1),
        lambda kinds, _: kinds.MaxPool2d(1),
        lambda kinds, _: kinds.AdaptiveAvgPool2d(1),
        lambda kinds, _: kinds.Upsample(scale_factor=1, mode="bilinear"),
        lambda kinds, _: kinds.LocalResponseNorm(3),
    ],
)
def test_maps_of_one_channel_or_pixel_are_written_in_place(
    make: Callable[[Any, int], torch.nn.Module],
    memory_format: torch.memory_format,
    shape: tuple[int, ...],
    device: torch.device,
) -> None:
    """Such a map lies in either order as it is: it must be no view of what the kernel wrote."""
    torch.manual_seed(3)
    x = torch.randn(shape, device=device).contiguous(memory_format=memory_format).requires_grad_()
    ours, exact_x = make(nn, shape[1]).to(device), x.detach().double().requires_grad_()
    twin = twin_of(ours, torch.float32).to(device).double()
    nn.ReLU(inplace=True)(ours(x * 1)).square().sum().backward()
    torch.relu(twin(exact_x)).square().sum().backward()
    assert x.grad is not None
    assert exact_x.grad is not None
    assert error(x.grad, exact_x.grad) <= TOLERANCE[torch.float32]


def grad_behind_a_change(layer: torch.nn.Module, x: Tensor) -> Tensor | None:
    """The gradient of x where the layer's output is doubled in place; None if that is refused."""
    x = x.detach().requires_grad_()
    y = layer(x * 1)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view(y.shape)
    try:
        y *= 2
        (y * weights).sum().backward()
    except RuntimeError:
        return None
    return x.grad


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", [name for name in LAYERS if len(LAYERS[name][1]) == 4])
def test_memory_format_is_kept(
    name: str, memory_format: torch.memory_format, device: torch.device
) -> None:
    if name == "conv reflect" and device.type == "cuda":
        pytest.skip("torch's own convolution after its own padding")
    make, shape = LAYERS[name]
    x = torch.randn(shape, device=device).contiguous(memory_format=memory_format)
    y = make().to(device)(x)
    kept = torch.contiguous_format if x.is_contiguous() else torch.channels_last
    assert y.dim() == 2 or y.is_contiguous(memory_format=kept)


@pytest.mark.parametrize(
    "kind",
    [
        nn.AdaptiveAvgPool2d,
        nn.AvgPool2d,
        nn.BCEWithLogitsLoss,
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.Conv2d,
        nn.ConvTranspose2d,
        nn.CrossEntropyLoss,
        nn.Dropout,
        nn.Dropout2d,
        nn.ELU,
        nn.CELU,
        nn.GLU,
        nn.Hardtanh,
        nn.LogSigmoid,
        nn.Mish,
        nn.PReLU,
        nn.SELU,
        nn.Softplus,
        nn.Softsign,
        nn.Threshold,
        nn.GELU,
        nn.Hardsigmoid,
        nn.Hardswish,
        nn.GroupNorm,
        nn.InstanceNorm1d,
        nn.InstanceNorm2d,
        nn.LayerNorm,
        nn.LazyConv2d,
        nn.LazyLinear,
        nn.LeakyReLU,
        nn.Linear,
        nn.LocalResponseNorm,
        nn.LogSoftmax,
        nn.MSELoss,
        nn.MaxPool2d,
        nn.ReLU,
        nn.ReLU6,
        nn.SiLU,
        nn.Sigmoid,
        nn.Softmax,
        nn.Tanh,
        nn.Upsample,
    ],
)
def test_constructor_is_torchs(kind: type[torch.nn.Module]) -> None:
    twin = getattr(torch.nn, kind.__name__)
    assert issubclass(kind, twin)
    assert inspect.signature(kind) == inspect.signature(twin)


def test_weights_start_as_torchs() -> None:
    for kind, sizes in (("Conv2d", (3, 4, 3)), ("Linear", (5, 6))):
        torch.manual_seed(3)
        ours = getattr(nn, kind)(*sizes).state_dict()
        torch.manual_seed(3)
        twin = getattr(torch.nn, kind)(*sizes).state_dict()
        assert list(ours) == list(twin)
        assert all(torch.equal(ours[name], twin[name]) for name in twin)


@pytest.mark.parametrize(
    ("lazy", "shape", "kind"),
    [
        (lambda: nn.LazyLinear(4), (2, 6), nn.Linear),
        (lambda: nn.LazyConv2d(4, 3), (2, 6, 5, 5), nn.Conv2d),
    ],
)
def test_lazy_layers_become_tvdnns(
    lazy: Callable[[], torch.nn.Module],
    shape: tuple[int, ...],
    kind: type[torch.nn.Module],
    device: torch.device,
) -> None:
    layer = lazy().to(device)
    x = torch.randn(shape, device=device)
    y = layer(x)
    assert type(layer) is kind
    assert layer.weight.shape[1] == shape[1]
    assert "tvdnn" not in type(twin_of(layer, torch.float32)).__module__
    assert error(y, twin_of(layer, torch.float32)(x.double())) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    "name",
    [
        "conv",
        "conv grouped",
        "conv depthwise, eights",
        "conv transposed, strided",
        "relu",
        "leaky relu",
        "gelu",
        "max pool",
        "avg pool",
        "adaptive pool",
        "linear",
        "response norm",
        "layer norm",
        "batch norm",
        "batch norm, as it was",
        "batch norm of features",
        "group norm",
        "prelu by channel",
        "softplus",
    ],
)
def test_triton_launchers_take_the_same_calls(
    name: str, monkeypatch: pytest.MonkeyPatch, device: torch.device, generator: torch.Generator
) -> None:
    """In the interpreter where there is no GPU; with one, every test here runs them."""
    for module in (
        activation,
        batch_norm,
        conv,
        conv_depthwise,
        conv_transpose,
        group_norm,
        layer_norm,
        linear,
        local_response_norm,
        pool,
        softmax,
        prelu,
        unary,
    ):
        monkeypatch.setattr(module, "choose", lambda x, kernel, reference: kernel)
    test_layer_matches_its_twin(name, torch.float32, torch.contiguous_format, device, generator)


def twins_with_forwards() -> list[str]:
    """Layers of tvdnn.nn that torch.nn has, too."""
    return [name for name in nn.__all__ if hasattr(getattr(torch.nn, name, None), "forward")]


@pytest.mark.parametrize("name", twins_with_forwards())
def test_arguments_are_named_as_torchs_are(name: str) -> None:
    ours, theirs = (getattr(layers, name).forward for layers in (nn, torch.nn))
    assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]


EMPTY = {
    "batch norm": (lambda layers: layers.BatchNorm2d(3, momentum=None), (0, 3, 4, 4)),
    "batch norm of features": (lambda layers: layers.BatchNorm1d(3), (0, 3)),
    "batch norm of lines in eval": (lambda layers: layers.BatchNorm1d(3).eval(), (0, 3, 5)),
    "layer norm": (lambda layers: layers.LayerNorm(3), (0, 3)),
    "upsample": (lambda layers: layers.Upsample(scale_factor=2), (0, 3, 4, 4)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_batch_of_no_samples_is_taken_as_torch_takes_it(name: str) -> None:
    make, shape = EMPTY[name]
    mine, theirs = make(nn), make(torch.nn)
    x = torch.zeros(shape, requires_grad=True)
    y = mine(x)
    assert y.shape == theirs(x).shape
    y.sum().backward()
    for param in mine.parameters():
        assert torch.equal(param.grad, torch.zeros_like(param))
    for key, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[key], value)


@pytest.mark.parametrize("name", ["MSELoss", "BCEWithLogitsLoss"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (2, 3)])
@pytest.mark.parametrize("target_grad", [False, True])
def test_losses_of_any_shape_are_torchs(
    name: str,
    reduction: str,
    shape: tuple[int, ...],
    target_grad: bool,
    generator: torch.Generator,
) -> None:
    """Of no dimension, of one, of no element, and with a gradient of the target."""
    device = generator.device
    x, target = (torch.rand(shape, generator=generator, device=device) for _ in range(2))
    results = []
    for layers in (nn, torch.nn):
        leaves = x.clone().requires_grad_(), target.clone().requires_grad_(target_grad)
        loss = getattr(layers, name)(reduction=reduction)(*leaves)
        loss.backward()
        results.append((loss.detach(), *(each.grad for each in leaves)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("shape", "of_target"), [((3,), ()), ((), (3,)), ((3,), (2, 3))])
def test_squares_broadcast_as_torchs_do(shape: tuple[int, ...], of_target: tuple[int, ...]) -> None:
    x, target = torch.rand(shape), torch.rand(of_target)
    with pytest.warns(UserWarning, match="target size"):
        found, expected = (layers.MSELoss()(x, target) for layers in (nn, torch.nn))
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("name", "of_target"), [("BCEWithLogitsLoss", (3,)), ("MSELoss", (2, 4)), ("MSELoss", (3, 3))]
)
def test_targets_of_other_shapes_are_torchs_errors(name: str, of_target: tuple[int, ...]) -> None:
    x, target = torch.rand(2, 3), torch.rand(of_target)
    with pytest.raises((RuntimeError, ValueError)) as expected:
        getattr(torch.nn, name)()(x, target)
    with pytest.raises(expected.type, match=re.escape(str(expected.value))):
        getattr(nn, name)()(x, target)


def test_a_group_of_one_value_in_all_is_torchs_error() -> None:
    for layers in (nn, torch.nn):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            layers.GroupNorm(4, 4)(torch.randn(1, 4))


def test_triton_launchers_of_dropout_and_loss(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, generator: torch.Generator
) -> None:
    for module in (dropout, loss):
        monkeypatch.setattr(module, "choose", lambda x, kernel, reference: kernel)
    test_dropout_drops_and_scales(0.5, False, device)
    for reduction in ("mean", "none"):
        test_cross_entropy_matches_its_twin(reduction, torch.float32, device, generator)
    for name in ("each", "pixels, all", "squares", "binary, weighted"):
        test_losses_match_their_twins(name, torch.float32, device, generator)


def test_instance_norm_with_running_statistics_is_torchs(device: torch.device) -> None:
    x = torch.randn(2, 5, 3, 4, device=device)
    ours, twin = (
        kind.InstanceNorm2d(5, track_running_stats=True).to(device) for kind in (nn, torch.nn)
    )
    assert torch.equal(ours(x), twin(x))
    assert torch.equal(ours.running_mean, twin.running_mean)
    assert torch.equal(ours(x[0]), twin(x[0]))


def test_transposed_convolutions_take_an_output_size(device: torch.device) -> None:
    x, layer = torch.randn(2, 3, 5, 4, device=device), nn.ConvTranspose2d(3, 4, 3, 2).to(device)
    y = layer(x, output_size=(12, 9))
    assert error(y, twin_of(layer, torch.float32)(x.double(), (12, 9))) <= TOLERANCE[torch.float32]
    with pytest.raises(InputError, match=r"shape \(2, 2, 5, 4\); weight is \(3, 4, 3, 3\)"):
        layer(x[:, :2])


def test_inplace_relu_writes_its_input(device: torch.device) -> None:
    x = torch.randn(2, 3, 4, 5, device=device)
    expected = x.clamp(min=0)
    y = nn.ReLU(inplace=True)(x)
    assert y.data_ptr() == x.data_ptr()
    assert torch.equal(x, expected)


def test_inplace_relu_writes_through_a_slice(device: torch.device) -> None:
    whole = torch.randn(4, 6, device=device)
    expected = whole.clone()
    expected[:, 1:4].clamp_(min=0)
    nn.ReLU(inplace=True)(whole[:, 1:4])
    assert torch.equal(whole, expected)


def test_inplace_relu_in_a_graph(device: torch.device) -> None:
    weight = torch.randn(3, 4, device=device, requires_grad=True)
    nn.ReLU(inplace=True)(weight * 2).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, 2.0 * (weight > 0))


INPLACE = (
    *(nn.LeakyReLU, nn.ReLU6, nn.ELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Mish, nn.CELU, nn.SELU, nn.Hardtanh),
)


@pytest.mark.parametrize("kind", INPLACE)
def test_inplace_activations_have_the_same_results(
    kind: type[torch.nn.Module], device: torch.device
) -> None:
    """Of a slice too, written through; and gradients do not read the input that is gone."""
    weight = torch.randn(4, 6, device=device, requires_grad=True)
    results = []
    for inplace in (False, True):
        whole = weight * 3
        y = kind(inplace=inplace)(whole[:, 1:4])
        assert inplace == torch.equal(whole[:, 1:4], y)
        (grad,) = torch.autograd.grad(y.square().sum(), weight)
        results += [y, grad]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("p", [0.25, 0.5, 1.0])
def test_dropout_drops_and_scales(p: float, inplace: bool, device: torch.device) -> None:
    torch.manual_seed(5)
    x = torch.ones(64, 5, 8, 8, device=device, requires_grad=True)
    y = nn.Dropout(p, inplace)(x * 1.0)
    y.backward(torch.full_like(y, 3.0))
    kept = y != 0
    scale = 1 / (1 - p) if p < 1 else 0.0
    assert x.grad is not None
    assert abs(float(kept.float().mean()) - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-9
    assert torch.equal(y, kept * scale)
    assert torch.equal(x.grad, kept * 3.0 * scale)


@pytest.mark.parametrize(
    ("layer", "dims"),
    [
        (nn.Dropout2d(0.4), (2, 3)),
        (nn.StochasticDepth(0.4, "row"), (1, 2, 3)),
        (nn.StochasticDepth(0.4, "batch"), (0, 1, 2, 3)),
    ],
)
def test_parts_drop_whole_and_scale(
    layer: torch.nn.Module, dims: tuple[int, ...], device: torch.device
) -> None:
    x, kinds = torch.rand(64, 5, 3, 2, device=device, requires_grad=True), set()
    for seed in range(6):
        torch.manual_seed(seed)
        y = layer(x)
        (dx,) = torch.autograd.grad(y, x, torch.full_like(y, 3.0))
        kept = (y != 0).float().amax(dims, keepdim=True)
        kinds |= set(kept.unique().tolist())
        torch.testing.assert_close(y, x * kept / 0.6)
        torch.testing.assert_close(dx, (3.0 * kept / 0.6).expand_as(x))
    assert kinds == {0.0, 1.0}
    assert layer.eval()(x) is x


def test_stochastic_depth_of_features(device: torch.device) -> None:
    y = nn.StochasticDepth(0.5, "row")(torch.ones(50, 4, device=device))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(y, y[:, :1].expand_as(y))
    with pytest.raises(InputError, match="p is 2 and mode 'row'"):
        nn.StochasticDepth(2, "row")


def test_dropout_follows_torchs_seed(device: torch.device) -> None:
    layer, x = nn.Dropout(), torch.ones(4, 100, device=device)
    draws = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        draws.append(layer(x))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert layer.eval()(x) is x


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_cross_entropy_matches_its_twin(
    reduction: str, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    logits = torch.randn(9, 11, generator=generator, device=device).to(dtype).requires_grad_()
    target = torch.randint(11, (9,), generator=generator, device=device)
    target[3] = -7
    exact_logits = logits.detach().double().requires_grad_()
    settings = {"ignore_index": -7, "reduction": reduction}

    ours = nn.CrossEntropyLoss(**settings)(logits, target)
    exact = torch.nn.CrossEntropyLoss(**settings)(exact_logits, target)
    dy = torch.randn(ours.shape, generator=generator, device=device, dtype=dtype)
    ours.backward(dy)
    exact.backward(dy.double())

    assert ours.dtype == dtype
    assert logits.grad is not None
    assert exact_logits.grad is not None
    assert error(ours, exact) <= TOLERANCE[dtype]
    assert error(logits.grad, exact_logits.grad) <= TOLERANCE[dtype]


MAPS, PIXELS = (3, 5, 7, 4), (3, 7, 4)
LOSSES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], tuple[int, ...] | None]] = {
    "smoothed": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), (9, 11), (9,)),
    "weighted": (lambda: nn.CrossEntropyLoss(torch.arange(1.0, 12.0)), (9, 11), (9,)),
    "each": (
        lambda: nn.CrossEntropyLoss(torch.arange(1.0, 6.0), reduction="none", label_smoothing=0.2),
        *(MAPS, PIXELS),
    ),
    "pixels": (nn.CrossEntropyLoss, MAPS, PIXELS),
    "pixels, all": (
        lambda: nn.CrossEntropyLoss(torch.arange(1.0, 6.0), label_smoothing=0.1, ignore_index=2),
        *(MAPS, PIXELS),
    ),
    "squares": (nn.MSELoss, MAPS, None),
    "sum of squares": (lambda: nn.MSELoss(reduction="sum"), (9, 11), None),
    "binary": (nn.BCEWithLogitsLoss, (9, 11), None),
    "binary, weighted": (
        lambda: nn.BCEWithLogitsLoss(
            torch.tensor(3.0), pos_weight=torch.arange(1.0, 6)[:, None, None]
        ),
        *(MAPS, None),
    ),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_match_their_twins(
    name: str, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    make, shape, classes = LOSSES[name]
    layer = make().to(device)
    x = torch.randn(shape, generator=generator, device=device).to(dtype).requires_grad_()
    given = {"generator": generator, "device": device}
    target = torch.rand(shape, **given) if classes is None else torch.randint(5, classes, **given)
    exact_x, twin = x.detach().double().requires_grad_(), copy.deepcopy(layer).double()
    twin.__class__ = type(layer).__mro__[1]

    ours = layer(x, target)
    exact = twin(exact_x, target if classes else target.double())
    dy = torch.randn(ours.shape, **given).to(dtype)
    ours.backward(dy)
    exact.backward(dy.double())

    assert ours.dtype == dtype
    assert x.grad is not None
    assert exact_x.grad is not None
    assert error(ours, exact) <= TOLERANCE[dtype]
    assert error(x.grad, exact_x.grad) <= TOLERANCE[dtype]


def test_other_losses_are_torchs(device: torch.device) -> None:
    """Of elements, of sequences, of probabilities, and with weights that are not by channel."""
    x, shares = torch.randn(5, 3, device=device), torch.rand(5, 3, device=device).softmax(1)
    lines = torch.randn(5, 3, 4, device=device)
    weight = torch.arange(1.0, 6.0, device=device)[:, None]
    for name, options, operands in (
        ("MSELoss", {"reduction": "none"}, (x, shares)),
        ("CrossEntropyLoss", {}, (x, shares)),
        ("CrossEntropyLoss", {}, (lines, lines.argmax(1))),
        ("BCEWithLogitsLoss", {"weight": weight}, (x, shares)),
    ):
        ours, twin = (getattr(package, name)(**options) for package in (nn, torch.nn))
        assert torch.equal(ours(*operands), twin(*operands))


def test_softmax_over_rows_is_torchs(device: torch.device) -> None:
    x = torch.randn(2, 5, 3, 7, device=device)
    for kind in ("Softmax", "LogSoftmax"):
        ours, twin = (getattr(package, kind)(2) for package in (nn, torch.nn))
        assert torch.equal(ours(x), twin(x))


@pytest.mark.parametrize("name", ["conv", "conv grouped", "linear", "max pool", "relu", "silu"])
def test_empty_batch(name: str, device: torch.device) -> None:
    make, shape = LAYERS[name]
    layer = make().to(device)
    x = torch.randn(0, *shape[1:], device=device, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == twin_of(layer, torch.float32)(x.double()).shape
    assert x.grad is not None
    assert all(not param.grad.any() for param in layer.parameters() if param.grad is not None)


def test_frozen_weights_get_no_gradient(device: torch.device) -> None:
    layer = nn.Conv2d(3, 4, 3).to(device)
    layer.weight.requires_grad_(False)
    layer(torch.randn(2, 3, 5, 5, device=device)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias is not None
    assert torch.equal(layer.bias.grad, torch.full((4,), 18.0, device=device))


def test_autocast_asks_for_bfloat16(device: torch.device) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2)).to(device)
    x = torch.randn(2, 3, 5, 5, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        y = net(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, net(x.bfloat16()))


def test_bfloat16_weights_have_bfloat16_gradients(device: torch.device) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2)).to(device).bfloat16()
    net.insert(1, nn.BatchNorm2d(4).to(device).bfloat16())
    net(torch.randn(2, 3, 5, 5, device=device, dtype=torch.bfloat16)).sum().backward()
    assert all(param.grad.dtype == torch.bfloat16 for param in net.parameters())


def test_plain_fx_sees_torchs_functions(device: torch.device) -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.LocalResponseNorm(3), nn.Flatten()]
    net = nn.Sequential(nn.BatchNorm2d(3), *layers, nn.Linear(4, 2)).to(device)
    x = torch.randn(2, 3, 4, 4, device=device)
    assert error(torch.fx.symbolic_trace(net)(x), net(x)) <= TOLERANCE[torch.float32]


def test_second_derivatives_are_refused(device: torch.device) -> None:
    x = torch.randn(2, 3, 5, 5, device=device, requires_grad=True)
    y = nn.Conv2d(3, 4, 3).to(device)(x)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_refusals_name_the_fault(device: torch.device) -> None:
    x = torch.randn(3, 8, 8, device=device)
    weight = torch.randn(4, 3, 3, 3, device=device)
    with pytest.raises(InputError, match=r"shape \(3, 8, 8\); maps are \[N, C, H, W\]"):
        conv2d(x, weight)
    with pytest.raises(InputError, match=r"shape \(3, 8, 8\)"):
        max_pool2d(x, 2)
    with pytest.raises(InputError, match="the input is float16"):
        conv2d(x[None].half(), weight)
    with pytest.raises(InputError, match=r"shape \(2, 4\); weight is \(3, 5\)"):
        nn.Linear(5, 3).to(device)(torch.randn(2, 4, device=device))
    with pytest.raises(
        InputError, match=r"shape \(1, 2, 8, 8\).* weight is \(4, 3, 3, 3\) in 1 group"
    ):
        conv2d(x[None, :2], weight)
    with pytest.raises(InputError, match=r"shape \(3, 8, 8\); normalized_shape is \(7,\)"):
        nn.LayerNorm(7)(x)
    with pytest.raises(ValueError, match="median"):
        cross_entropy(x[0], torch.zeros(8, dtype=torch.int64, device=device), reduction="median")
