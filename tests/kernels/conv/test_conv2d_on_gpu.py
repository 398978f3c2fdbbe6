"""Convolution kernels where only a GPU has them: repeats, specialized warps, large offsets."""

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import ON_GPU, Layer, Shape, make
from tests.kernels.numerics import assert_repeatable, poisoned_like
from tvdnn.kernels.codec.sign_bits import packed_signs_reference
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv import launch as conv_launch
from tvdnn.kernels.conv.grad_bias import grad_bias_plan


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_repeats_to_the_bit(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    layer = make(ON_GPU[name], dtype, generator)
    settings = layer.shape.settings
    y, dx = poisoned_like(layer.dy), poisoned_like(layer.x)
    packed, packed_grad = layer.packed(dtype), layer.packed_grad(dtype)

    def launch() -> None:
        conv.conv2d(layer.x, packed, layer.bias, y, **settings)
        conv.conv2d_grad_input(layer.dy, packed_grad, dx, **settings)

    assert_repeatable(launch, y, dx)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("channels", "groups"),
    [((64, 64), 1), ((64, 192), 1), ((128, 128), 1), ((128, 128), 32), ((256, 256), 2)],
)
@pytest.mark.parametrize("side", [112, 28, 30, 13, 7])
def test_specialized_warps_change_no_bit(
    channels: tuple[int, int],
    groups: int,
    side: int,
    dtype: torch.dtype,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = Shape((35, side, side), channels, groups=groups, precision="tf32")
    layer = make(shape, dtype, generator)
    specialized = outputs_of(layer)
    for module in (conv, conv_launch):
        monkeypatch.setattr(module, "suits_specialized", lambda *_, **__: False)
    for one, other in zip(specialized, outputs_of(layer), strict=True):
        assert torch.equal(one, other)


def outputs_of(layer: Layer) -> list[Tensor]:
    """The launchers' results for a layer, with each of the epilogues."""
    settings, mask, dtype = layer.shape.settings, layer.x.relu(), layer.x.dtype
    packed, packed_grad = layer.packed(dtype), layer.packed_grad(dtype)
    y, dx, masked = poisoned_like(layer.dy), poisoned_like(layer.x), poisoned_like(layer.x)
    conv.conv2d(layer.x, packed, layer.bias, y, relu=True, **settings)
    conv.conv2d_grad_input(layer.dy, packed_grad, dx, **settings)
    conv.conv2d_grad_input(layer.dy, packed_grad, masked, mask=mask, **settings)
    by_bits, bits = poisoned_like(layer.x), packed_signs_reference(mask)
    conv.conv2d_grad_input(layer.dy, packed_grad, by_bits, mask=bits, **settings)
    assert torch.equal(by_bits, masked)
    cell = grad_bias_plan(layer.shape.x[1:], 1).cell
    sums = poisoned_like(dx[:, cell - 1 :: cell, cell - 1 :: cell].float())
    again = poisoned_like(layer.x)
    by = {"mask": mask, "sums": sums if cell > 1 else None}
    conv.conv2d_grad_input(layer.dy, packed_grad, again, **by, **settings)
    maxima = poisoned_like(y[:, 1::2, 1::2])
    codes = torch.zeros(*maxima.shape[:3], y.shape[3] // 4, dtype=torch.uint8, device=y.device)
    conv.conv2d_max_pool(layer.x, packed, layer.bias, maxima, codes, **settings)
    return [y, dx, masked, again, *([sums] if cell > 1 else []), maxima, codes]


@pytest.mark.gpu
def test_offsets_beyond_32_bits(generator: torch.Generator) -> None:
    """The last sample of a map of over 2^31 elements has the bits that it has alone."""
    samples = (1 << 31) // (224 * 224 * 64) + 2
    layer = make(Shape((2, 224, 224), (64, 64)), torch.bfloat16, generator)
    x = torch.empty(samples, 224, 224, 64, dtype=torch.bfloat16, device="cuda")
    x.copy_(layer.x[1])
    y = poisoned_like(x)
    conv.conv2d(x, layer.packed(torch.bfloat16), None, y, **layer.shape.settings)
    alone = poisoned_like(layer.dy)
    conv.conv2d(layer.x, layer.packed(torch.bfloat16), None, alone, **layer.shape.settings)
    assert torch.equal(y[-1], alone[1])
