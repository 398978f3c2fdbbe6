"""The layers against their torch.nn twins in float64: results, gradients and memory layouts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.layers import LAYERS, TOLERANCE, error, twin_of
from tvdnn import nn
from tvdnn.nn import eager


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
    "name",
    [
        "conv",
        "conv grouped",
        "conv depthwise, eights",
        "conv transposed, strided",
        "relu",
        "leakyrelu",
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
    monkeypatch.setattr(eager, "kernels_for", lambda x: eager.TRITON)
    test_layer_matches_its_twin(name, torch.float32, torch.contiguous_format, device, generator)


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
