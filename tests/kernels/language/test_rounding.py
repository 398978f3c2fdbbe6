"""Rounding of values: nearest ones, zeros behind them, signs, infinities and NaN."""

import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.kernels.numerics import assert_rounds
from tvdnn.kernels.conv.conv2d import conv2d, conv2d_grad_input, conv2d_max_pool
from tvdnn.kernels.conv.pack_weight import pack_weight, pack_weight_grad_input
from tvdnn.kernels.copy import layout
from tvdnn.kernels.copy.layout import cast, stage
from tvdnn.kernels.language.rounding import (
    as_stored,
    clamped_as_stored,
    rectified_as_stored,
    stored,
    stored_reference,
)
from tvdnn.kernels.linear.passes import linear, linear_grad_input
from tvdnn.kernels.loss import per_element as loss_elements
from tvdnn.kernels.norm import batch_norm, batch_norm_grad, layer_norm
from tvdnn.kernels.norm import local_response_norm as norm
from tvdnn.kernels.pointwise import activation, arithmetic, dropout
from tvdnn.kernels.pool import avg as pool_avg
from tvdnn.kernels.pool import max_grad as pool_max_grad


@triton.jit
def _stored_kernel(
    x_ptr: torch.Tensor, y_ptr: torch.Tensor, PRECISION: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, stored(x, y_ptr.dtype.element_ty, PRECISION))


def launched(x: torch.Tensor, dtype: torch.dtype, precision: str) -> torch.Tensor:
    y = torch.empty_like(x, dtype=dtype)
    _stored_kernel[(1,)](x, y, PRECISION=precision, BLOCK=x.numel())
    return y


@triton.jit
def _rectified_kernel(
    bits_ptr: torch.Tensor, y_ptr: torch.Tensor, expected_ptr: torch.Tensor,
    CLAMPED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(bits_ptr + offs).to(tl.float32, bitcast=True)
    y = as_stored(x, y_ptr.dtype.element_ty)
    if CLAMPED:
        tl.store(y_ptr + offs, clamped_as_stored(x, y_ptr.dtype.element_ty))
        y = tl.where(y >= 6, 6.0, y)
    else:
        tl.store(y_ptr + offs, rectified_as_stored(x, y_ptr.dtype.element_ty))
    y = tl.where(y <= 0, 0.0, y).to(y_ptr.dtype.element_ty)
    tl.store(expected_ptr + offs, y)


@pytest.mark.parametrize("clamped", [False, True], ids=["relu", "relu6"])
def test_values_are_rectified_as_they_are_rounded(clamped: bool, device: torch.device) -> None:
    """Of every sign and exponent; on a GPU, by one instruction, with every value of bfloat16."""
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], device=device)
    upper = torch.arange(0, 1 << 16, 1 if device.type == "cuda" else 64, device=device)
    values = ((upper[:, None] << 16) | lower).flatten()
    bits = torch.where(values < 1 << 31, values, values - (1 << 32)).to(torch.int32)
    block = 1024
    bits = torch.cat([bits, bits.new_zeros(-len(bits) % block)])
    y, expected = torch.empty(2, len(bits), dtype=torch.bfloat16, device=device)
    _rectified_kernel[(len(bits) // block,)](bits, y, expected, CLAMPED=clamped, BLOCK=block)
    assert torch.equal(y.view(torch.int16), expected.view(torch.int16))
    assert (y != 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_equals_its_reference(
    dtype: torch.dtype, precision: str, generator: torch.Generator, device: torch.device
) -> None:
    x = torch.randn(1024, generator=generator, device=device)
    got = launched(x, dtype, precision)
    assert torch.equal(got, stored_reference(x, dtype, precision))


def test_keeps_ten_bits_and_takes_the_nearest(generator: torch.Generator) -> None:
    x = torch.randn(4096, generator=generator, device=generator.device)
    y = stored_reference(x, torch.float32, "tf32")
    assert not (y.view(torch.int32) & 0x1FFF).any()
    _, exponent = torch.frexp(x)
    half_step = torch.ldexp(torch.ones_like(x), exponent - 12)  # 2^-11 of the leading power
    assert ((y - x).abs() <= half_step).all()
    assert abs(((y - x) / x).mean()) < 2e-5  # cut toward zero it would be -3.5e-4


def test_special_values(device: torch.device) -> None:
    values = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1 + 2**-11]
    x = torch.tensor(values, device=device)
    x[4:5].view(torch.int32).fill_(0x7FFFFFFF)  # the NaN of a GPU's arithmetic
    rounded = launched(x, torch.float32, "tf32")
    got = rounded.tolist()
    assert got[:4] + got[5:] == [0.0, 0.0, math.inf, -math.inf, 1.0, -1.0, 1 + 2**-10]
    assert math.copysign(1, got[1]) == -1
    assert rounded[4:5].view(torch.int32).item() == 0x7FC00000


def test_every_nan_becomes_one(device: torch.device) -> None:
    """Their payloads may lie in the bits that TF32 drops, and their signs may be set."""
    payloads = [1, 0x1FFF, 0x2000, 0x400000, 0x7FFFFF]
    bits = [sign | 0x7F800000 | each for sign in (0, -(1 << 31)) for each in payloads]
    x = torch.tensor([*bits, *bits[:6]], dtype=torch.int32, device=device).view(torch.float32)
    for rounded in (launched(x, x.dtype, "tf32"), stored_reference(x, x.dtype, "tf32")):
        assert rounded.view(torch.int32).tolist() == [0x7FC00000] * len(x)


def test_copies_of_inputs_and_weights_are_rounded(generator: torch.Generator) -> None:
    weight = torch.randn(8, 4, 3, 3, generator=generator, device=generator.device)
    packed, flipped = weight.new_empty(8, 3, 3, 4), weight.new_empty(4, 3, 3, 8)
    maps, copied = weight.new_empty(8, 3, 3, 4), torch.empty_like(weight)
    pack_weight(weight, packed, groups=1, precision="tf32")
    pack_weight_grad_input(weight, flipped, groups=1, precision="tf32")
    stage(weight, maps, precision="tf32")
    cast(weight, copied, precision="tf32")
    want = stored_reference(weight, torch.float32, "tf32")
    assert torch.equal(copied, want)
    for made in (packed, maps):
        assert torch.equal(made, want.permute(0, 2, 3, 1))
    assert torch.equal(flipped, want.flip(2, 3).permute(1, 2, 3, 0))


def is_tf32(values: torch.Tensor) -> bool:
    return not (values.contiguous().view(torch.int32) & 0x1FFF).any()


@pytest.mark.parametrize("channels", [3, 32])  # by pointers, by boxes
def test_maps_of_convolutions_are_rounded(channels: int, generator: torch.Generator) -> None:
    x = torch.randn(2, 6, 6, channels, generator=generator, device=generator.device)
    weight = torch.randn(32, channels, 3, 3, generator=generator, device=generator.device)
    packed, flipped = weight.new_empty(32, 3, 3, channels), weight.new_empty(channels, 3, 3, 32)
    pack_weight(weight, packed, groups=1)
    pack_weight_grad_input(weight, flipped, groups=1)
    settings = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    y, pooled, dx = x.new_empty(2, 6, 6, 32), x.new_empty(2, 3, 3, 32), torch.empty_like(x)
    codes = torch.empty(2, 3, 3, 8, dtype=torch.uint8, device=x.device)
    conv2d(x, packed, None, y, **settings, precision="tf32", relu=True)
    conv2d_max_pool(x, packed, None, pooled, codes, **settings, precision="tf32")
    conv2d_grad_input(y, flipped, dx, **settings, precision="tf32", mask=x)
    assert is_tf32(y)
    assert is_tf32(pooled)
    assert is_tf32(dx)
    conv2d(x, packed, None, y, **settings, precision="ieee")
    assert not is_tf32(y)
    stored_exactly = {"precision": "tf32", "out_precision": "ieee"}
    conv2d(x, packed, None, y, **settings, **stored_exactly)
    conv2d_max_pool(x, packed, None, pooled, codes, **settings, **stored_exactly)
    conv2d_grad_input(y, flipped, dx, **settings, **stored_exactly)
    assert not any(map(is_tf32, (y, pooled, dx)))


def test_outputs_of_linear_layers_are_rounded_for_products(generator: torch.Generator) -> None:
    x = torch.randn(5, 40, generator=generator, device=generator.device)
    weight = torch.randn(24, 40, generator=generator, device=generator.device)
    y, dx = x.new_empty(5, 24), torch.empty_like(x)
    linear(x, weight, None, y, precision="tf32")
    linear_grad_input(y, weight, dx, precision="tf32")
    assert is_tf32(y)
    assert is_tf32(dx)
    linear(x, weight, None, y, precision="tf32", out_precision="ieee")
    linear_grad_input(y, weight, dx, precision="tf32", out_precision="ieee")
    assert not is_tf32(y)
    assert not is_tf32(dx)


WINDOW = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
MEANS = {"count_include_pad": True, "divisor_override": None}
NORM = {"size": 5, "alpha": 0.1, "beta": 0.75, "k": 2.0}
SOURCES = [  # sides of what is read and of what is written: maps of 7 x 7, pooled 4 x 4
    (pool_avg, "avg_pool2d", 7, 4, WINDOW | MEANS),
    (pool_avg, "avg_pool2d_grad", 4, 7, WINDOW | MEANS),
    (pool_avg, "adaptive_avg_pool2d", 7, 4, {}),
    (pool_avg, "adaptive_avg_pool2d_grad", 4, 7, {}),
    (pool_max_grad, "max_pool2d_grad", 4, 7, WINDOW | {"dilation": (1, 1)}),
    (pool_max_grad, "max_unpool2d", 4, 7, WINDOW | {"dilation": (1, 1)}),
    (layout, "add", 7, 7, {}),
    (arithmetic, "affine", 7, 7, {"scale": 0.3, "shift": 0.1}),
    (arithmetic, "add_multiple", 7, 7, {"scale": 0.3}),
    (arithmetic, "multiply", 7, 7, {}),
    (norm, "local_response_norm", 7, 7, NORM),
    (norm, "local_response_norm_grad", 7, 7, NORM),
    (layer_norm, "layer_norm", 7, 7, {"eps": 1e-3}),
    (layer_norm, "layer_norm_grad", 7, 7, {"eps": 1e-3}),
    (activation, "relu", 7, 7, {}),
    (activation, "relu_grad", 7, 7, {}),
    (activation, "activate", 7, 7, {"function": "silu"}),
    (activation, "activate_grad", 7, 7, {"function": "silu"}),
    (activation, "activate_grad", 7, 7, {"function": "sigmoid"}),
    (loss_elements, "element_loss_grad", 7, 7, {"function": "mse"}),
    (batch_norm, "batch_norm", 7, 7, {}),
    (batch_norm_grad, "batch_norm_grad_input", 7, 7, {"rows": 98}),
    (dropout, "dropout", 7, 7, {"p": 0.3, "op_id": 1, "first_sample": 0}),
]


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize(("module", "name", "side", "left", "settings"), SOURCES)
def test_results_are_rounded_for_products(
    module: Any,
    name: str,
    side: int,
    left: int,
    settings: dict[str, Any],
    suffix: str,
    generator: torch.Generator,
) -> None:
    device = generator.device
    given = torch.randn(2, side, side, 24, generator=generator, device=device)
    like = torch.randn(2, left, left, 24, generator=generator, device=device)
    codes = torch.full((2, side, side, 12), 0x44, dtype=torch.uint8, device=device)  # the centres
    ones = torch.ones(2, device=device)
    statistics = torch.rand(3, 24, generator=generator, device=device) + 0.5
    operands = {
        "batch_norm": (given, statistics, None, None, None),
        "batch_norm_grad_input": (given, like, statistics, None, None, None, None),
        "add": (like, given),
        "add_multiple": (like, given),
        "multiply": (like, given),
        "relu_grad": (like, given),
        "activate_grad": (like, given),
        "layer_norm": (given, None, None),
        "layer_norm_grad": (like, given, None),
        "max_pool2d_grad": (like, given),
        "max_unpool2d": (given, codes),
        "local_response_norm_grad": (like, given),
        "element_loss_grad": (given, like, None, None, ones, ones[:1]),
    }
    read = operands.get(name, (given,))
    seed, none = torch.tensor([7], device=device), (None,)
    behind = {"dropout": (seed,), "layer_norm_grad": none}.get(name, ())
    launch = getattr(module, name + suffix)
    assert_rounds(lambda out, **by: launch(*read, out, *behind, **settings, **by), like)


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_a_gradient_that_is_added_to_is_rounded_from_a_channel_on(
    suffix: str, generator: torch.Generator
) -> None:
    device = generator.device
    x, dy, so_far = torch.randn(3, 2, 49, 24, generator=generator, device=device)
    statistics = torch.rand(3, 24, generator=generator, device=device) + 0.5
    exact, rounded = torch.empty_like(x), torch.empty_like(x)
    launch = getattr(batch_norm_grad, f"batch_norm_grad_input{suffix}")
    for out, precision in ((exact, "ieee"), (rounded, "tf32")):
        settings = {"rows": 98, "added": so_far, "rounded_from": 16, "precision": precision}
        launch(x, dy, statistics, None, None, None, None, out, **settings)
    want = stored_reference(exact[..., 16:], torch.float32, "tf32")
    assert torch.equal(rounded[..., :16], exact[..., :16])
    assert torch.equal(rounded[..., 16:], want)
    assert not torch.equal(exact[..., 16:], want)


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("function", ["leaky_relu", "sigmoid", "silu"])
def test_a_fused_function_is_rounded_as_one_apart(
    function: str, suffix: str, generator: torch.Generator
) -> None:
    """A normalization and its function are one pass, whose gradient knows the stored value.

    A sigmoid's gradient, which rounding may have lost, reads the exact output.
    """
    device = generator.device
    x, dy = torch.randn(2, 2, 49, 24, generator=generator, device=device)
    statistics = torch.rand(3, 24, generator=generator, device=device) + 0.5
    none = (statistics, None, None)
    z, y, fused, dz, dx, fused_dx = (torch.empty_like(x) for _ in range(6))
    apply = getattr(activation, f"activate{suffix}")
    apply_grad = getattr(activation, f"activate_grad{suffix}")
    normalize = getattr(batch_norm, f"batch_norm{suffix}")
    normalize_grad = getattr(batch_norm_grad, f"batch_norm_grad_input{suffix}")
    normalize(x, *none, None, z)
    apply(z, y, function=function, precision="tf32")
    normalize(x, *none, None, fused, function=function, precision="tf32")
    assert torch.equal(fused, y)
    by_input = {"sigmoid": {"by_input": True}, "silu": {}}
    read = z if function in by_input else y
    apply_grad(read, dy, dz, function=function, **by_input.get(function, {}))
    normalize_grad(x, dz, *none, None, None, dx, rows=98)
    settings = {"rows": 98, "function": function, "out_precision": "tf32"}
    normalize_grad(x, dy, *none, None, None, fused_dx, **settings)
    assert torch.equal(fused_dx, dx)
