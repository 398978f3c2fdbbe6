"""Fully connected products against their references, and the references against autograd."""

import math

import pytest
import torch
from torch.nn import functional

from tests.kernels.numerics import assert_repeatable, poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.language.device import capability
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.kernels.linear import passes as linear
from tvdnn.kernels.linear.gemm import LinearEpilogue, share_of
from tvdnn.kernels.linear.grad_weight_resident import resident_gradient
from tvdnn.kernels.linear.grad_weight_tma_store import suits_tma_store, tma_store_gradient
from tvdnn.kernels.linear.wide_tiles import multiply_wide
from tvdnn.kernels.pointwise import activation, dropout

TOLERANCE = {
    (torch.float32, "ieee"): 2e-6,
    (torch.float32, "tf32"): 2e-3,  # a GPU cuts both factors to 10 bits, 2 * 2**-10 at most
    (torch.bfloat16, "ieee"): 4e-3,
}
GRADIENT_TOLERANCE = {**TOLERANCE, (torch.bfloat16, "ieee"): 1e-5}  # float32 of the same products
Shape = tuple[int, int, int]  # samples, outputs, inputs
SHAPES = [(3, 10, 84), (1, 1, 1), (5, 129, 17), (131, 24, 40), (2, 72, 136), (0, 8, 8)]
SETTINGS = list(TOLERANCE)


def operands(
    shape: Shape, dtype: torch.dtype, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [N, F], weight [O, F], bias [O] and dy [N, O]."""
    samples, outputs, inputs = shape
    x = randn((samples, inputs), dtype, generator)
    weight = randn((outputs, inputs), dtype, generator, inputs**-0.5)
    bias = randn((outputs,), torch.float32, generator)
    return x, weight, bias, randn((samples, outputs), dtype, generator)


@pytest.mark.parametrize(("dtype", "precision"), SETTINGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_input_gradient(
    shape: Shape, dtype: torch.dtype, precision: str, generator: torch.Generator
) -> None:
    x, weight, bias, dy = operands(shape, dtype, generator)
    tolerance = TOLERANCE[dtype, precision]
    for added in (bias, None):
        y, expected = poisoned_like(dy), poisoned_like(dy)
        linear.linear(x, weight, added, y, precision=precision)
        linear.linear_reference(x, weight, added, expected, precision=precision)
        assert rms_error(y, expected) <= tolerance
    dx, expected = poisoned_like(x), poisoned_like(x)
    linear.linear_grad_input(dy, weight, dx, precision=precision)
    linear.linear_grad_input_reference(dy, weight, expected, precision=precision)
    assert rms_error(dx, expected) <= tolerance


@pytest.mark.parametrize(("dtype", "precision"), SETTINGS, ids=str)
@pytest.mark.parametrize("shape", [(3, 24, 200), (5, 17, 129), (1, 8, 1096)])
@pytest.mark.parametrize("shares", [2, 5])
def test_products_in_shares(
    shares: int, shape: Shape, dtype: torch.dtype, precision: str, generator: torch.Generator
) -> None:
    x, weight, bias, dy = operands(shape, dtype, generator)
    shares = -(-shape[2] // share_of(shape[2], shares))
    partials = poisoned((shape[0], shares, shape[1]), torch.float32, x.device)
    options = {"precision": precision, "partials": partials}
    y, expected = poisoned_like(dy), poisoned_like(dy)
    linear.linear(x, weight, bias, y, **options)
    linear.linear_reference(x, weight, bias, expected, **options)
    assert rms_error(y, expected) <= TOLERANCE[dtype, precision]
    last = poisoned_like(dy[-1:])
    options["partials"] = poisoned_like(partials[-1:])
    linear.linear(x[-1:], weight, bias, last, **options)
    assert torch.equal(y[-1:], last)


@pytest.mark.gpu
@pytest.mark.parametrize("shares", [1, 4])
def test_weight_is_rounded_in_registers(shares: int, generator: torch.Generator) -> None:
    x, weight, bias, dy = operands((200, 1000, 1032), torch.float32, generator)
    x, dy, rounded = (stored_reference(t, t.dtype, "tf32") for t in (x, dy, weight))
    for terms, like, launch in (
        (1032, dy, lambda w, out, **by: linear.linear(x, w, bias, out, relu=True, **by)),
        (1000, x, lambda w, out, **by: linear.linear_grad_input(dy, w, out, mask=x, **by)),
    ):
        assert -(-terms // share_of(terms, shares)) == shares
        outputs = [poisoned_like(like) for _ in range(2)]
        for out, kept in zip(outputs, (weight, rounded), strict=True):
            partials = poisoned((200, shares, like.shape[1]), torch.float32, x.device)
            launch(kept, out, precision="tf32", partials=partials if shares > 1 else None)
        assert torch.equal(*outputs)
        assert outputs[0].isfinite().all()


@pytest.mark.parametrize("shape", [(3, 72, 136), (131, 24, 400)])
def test_wide_tiles(shape: Shape, generator: torch.Generator) -> None:
    x, weight, _, dy = operands(shape, torch.bfloat16, generator)
    dx, expected = poisoned_like(x), poisoned_like(x)
    masked = {"mask": x, "scale": 1.25}
    multiply_wide(dy, weight, dx, LinearEpilogue(**masked))
    linear.linear_grad_input_reference(dy, weight, expected, precision="ieee", **masked)
    assert rms_error(dx, expected) <= TOLERANCE[torch.bfloat16, "ieee"]


@pytest.mark.parametrize("shape", [(4, 10, 84), (132, 24, 40)])
def test_transposed_weight_gradient(shape: Shape, generator: torch.Generator) -> None:
    samples, outputs, inputs = shape
    x, _, _, dy = operands(shape, torch.float32, generator)
    transposed = [poisoned((size, samples), torch.float32, x.device) for size in (inputs, outputs)]
    grad, expected = (poisoned((outputs, inputs), torch.float32, x.device) for _ in range(2))
    options = {"group": samples, "precision": "tf32"}
    linear.linear_grad_weight(x, dy, grad, transposed=transposed, **options)
    linear.linear_grad_weight_reference(x, dy, expected, **options)
    assert torch.equal(transposed[0], x.T)
    assert torch.equal(transposed[1], dy.T)
    assert rms_error(grad, expected) <= TOLERANCE[torch.float32, "tf32"]


@pytest.mark.gpu
@pytest.mark.parametrize("samples", [1, 64, 100, 256])
@pytest.mark.parametrize("sizes", [(520, 1032), (8, 16), (136, 9000)], ids=str)
def test_streamed_weight_gradient_has_the_resident_ones_bits(
    sizes: tuple[int, int], samples: int, generator: torch.Generator
) -> None:
    if capability()[0] != 9:
        pytest.skip("the kernel is for Hopper")
    outputs, inputs = sizes
    x, _, _, dy = operands((samples, outputs, inputs), torch.bfloat16, generator)
    room, expected = (poisoned((outputs + 1, inputs), torch.float32, x.device) for _ in range(2))
    assert suits_tma_store(room[:-1])
    tma_store_gradient(x, dy, room[:-1])
    resident_gradient(x, dy, expected[:-1])
    assert torch.equal(room[:-1], expected[:-1])
    assert room[-1].isnan().all()
    assert_repeatable(lambda: tma_store_gradient(x, dy, room[:-1]), room[:-1])


@pytest.mark.parametrize(("dtype", "precision"), SETTINGS, ids=str)
@pytest.mark.parametrize(
    ("shape", "group"),
    [((3, 10, 84), 4), ((5, 131, 17), 2), ((130, 24, 40), 64), ((130, 8, 16), 200), ((0, 8, 8), 4)],
)
def test_parameter_gradients(
    shape: Shape,
    group: int,
    dtype: torch.dtype,
    precision: str,
    generator: torch.Generator,
) -> None:
    samples, outputs, inputs = shape
    x, _, _, dy = operands(shape, dtype, generator)
    groups = -(-samples // group)
    weights = poisoned((groups, outputs, inputs), torch.float32, x.device)
    biases = poisoned((groups, outputs), torch.float32, x.device)
    expected_weights, expected_biases = poisoned_like(weights), poisoned_like(biases)
    linear.linear_grad_weight(x, dy, weights, group=group, precision=precision)
    linear.linear_grad_bias(dy, biases, group=group)
    linear.linear_grad_weight_reference(x, dy, expected_weights, group=group, precision=precision)
    linear.linear_grad_bias_reference(dy, expected_biases, group=group)
    assert rms_error(weights, expected_weights) <= GRADIENT_TOLERANCE[dtype, precision]
    assert rms_error(biases, expected_biases) <= GRADIENT_TOLERANCE[dtype, precision]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_references_are_autograd(dtype: torch.dtype, generator: torch.Generator) -> None:
    x, weight, bias, dy = operands((7, 13, 11), dtype, generator)
    leaves = [leaf.float().clone().requires_grad_() for leaf in (x, weight, bias)]
    product = functional.linear(*leaves)
    product.backward(dy.float())
    y, dx = poisoned_like(dy), poisoned_like(x)
    dweight, dbias = poisoned_like(weight.float()), poisoned_like(bias)
    linear.linear_reference(x, weight, bias, y, precision="ieee")
    linear.linear_grad_input_reference(dy, weight, dx, precision="ieee")
    linear.linear_grad_weight_reference(x, dy, dweight, group=8, precision="ieee")
    linear.linear_grad_bias_reference(dy, dbias[None], group=8)
    assert rms_error(y, product.detach()) <= TOLERANCE[dtype, "ieee"]
    for gradient, leaf in zip((dx, dweight, dbias), leaves, strict=True):
        assert leaf.grad is not None
        assert rms_error(gradient, leaf.grad) <= TOLERANCE[dtype, "ieee"]


@pytest.mark.parametrize(("dtype", "precision"), SETTINGS, ids=str)
def test_bits_do_not_depend_on_the_run(
    dtype: torch.dtype, precision: str, generator: torch.Generator
) -> None:
    x, weight, bias, dy = operands((7, 24, 72), dtype, generator)
    y, dx = poisoned_like(dy), poisoned_like(x)
    partials = poisoned((4, 24, 72), torch.float32, x.device)
    linear.linear(x, weight, bias, y, precision=precision)
    linear.linear_grad_input(dy, weight, dx, precision=precision)
    linear.linear_grad_weight(x, dy, partials, group=2, precision=precision)
    for part in (slice(0, 2), slice(2, 6), slice(6, 7)):
        y_part, dx_part = poisoned_like(y[part]), poisoned_like(dx[part])
        linear.linear(x[part], weight, bias, y_part, precision=precision)
        linear.linear_grad_input(dy[part], weight, dx_part, precision=precision)
        assert torch.equal(y[part], y_part)
        assert torch.equal(dx[part], dx_part)
        groups = partials[part.start // 2 : (part.stop + 1) // 2]
        own = poisoned_like(groups)
        linear.linear_grad_weight(x[part], dy[part], own, group=2, precision=precision)
        assert torch.equal(groups, own)


@pytest.mark.parametrize(("dtype", "precision"), SETTINGS, ids=str)
@pytest.mark.parametrize("shape", [(3, 10, 84), (131, 24, 40)])
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_fused_output_is_that_of_passes(
    suffix: str, shape: Shape, dtype: torch.dtype, precision: str, generator: torch.Generator
) -> None:
    product, relu = getattr(linear, "linear" + suffix), getattr(activation, "relu" + suffix)
    drop = getattr(dropout, "dropout" + suffix)
    x, weight, bias, dy = operands(shape, dtype, generator)
    x[0, 0] = math.nan
    seed, place = torch.tensor([7], device=x.device), {"op_id": 3, "first_sample": 5}
    y, expected = poisoned_like(dy), poisoned_like(dy)
    for p in (0.0, 0.3):
        product(x, weight, bias, expected, precision=precision, out_precision="ieee")
        relu(expected, expected)
        drop(expected, expected, seed, p=p, **place, precision=precision)
        fused = {"relu": True, "dropout_p": p, "seed": seed if p else None}
        product(x, weight, bias, y, precision=precision, **fused, **place)
        assert torch.equal(y[1:], expected[1:])
        assert torch.equal(y[0].isnan(), expected[0].isnan())


@pytest.mark.parametrize(("dtype", "precision"), SETTINGS, ids=str)
@pytest.mark.parametrize("shape", [(3, 10, 84), (131, 24, 40)])
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_masked_gradient_is_that_of_passes(
    suffix: str, shape: Shape, dtype: torch.dtype, precision: str, generator: torch.Generator
) -> None:
    product = getattr(linear, "linear_grad_input" + suffix)
    relu_grad = getattr(activation, "relu_grad" + suffix)
    drop = getattr(dropout, "dropout" + suffix)
    x, weight, _, dy = operands(shape, dtype, generator)
    seed, p, place = torch.tensor([7], device=x.device), 0.3, {"op_id": 3, "first_sample": 5}
    rectified, mask = x.relu(), poisoned_like(x)
    drop(rectified, mask, seed, p=p, **place, precision=precision)
    dx, expected = poisoned_like(x), poisoned_like(x)
    product(dy, weight, expected, precision=precision, out_precision="ieee")
    drop(expected, expected, seed, p=p, **place)
    relu_grad(rectified, expected, expected, precision=precision)
    product(dy, weight, dx, precision=precision, mask=mask, scale=1 / (1 - p))
    assert torch.equal(dx, expected)
    product(dy, weight, expected, precision=precision, out_precision="ieee")
    relu_grad(rectified, expected, expected, precision=precision)
    product(dy, weight, dx, precision=precision, mask=rectified)
    assert torch.equal(dx, expected)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "precision"), SETTINGS, ids=str)
def test_repeats(dtype: torch.dtype, precision: str, generator: torch.Generator) -> None:
    x, weight, bias, dy = operands((200, 520, 1032), dtype, generator)
    y, dx = poisoned_like(dy), poisoned_like(x)
    partials = poisoned((4, 520, 1032), torch.float32, x.device)
    options = {"precision": precision}
    assert_repeatable(lambda: linear.linear(x, weight, bias, y, **options), y)
    assert_repeatable(lambda: linear.linear_grad_input(dy, weight, dx, **options), dx)
    assert_repeatable(
        lambda: linear.linear_grad_weight(x, dy, partials, group=64, **options), partials
    )


@pytest.mark.gpu
@pytest.mark.parametrize("inputs", [(1 << 20) + 8, (1 << 20) + 1])
def test_large_offsets(inputs: int, generator: torch.Generator) -> None:
    x = randn((2049, inputs), torch.bfloat16, generator)
    weight = randn((8, inputs), torch.bfloat16, generator, inputs**-0.5)
    y, last = (poisoned((rows, 8), torch.bfloat16, x.device) for rows in (2049, 1))
    linear.linear(x, weight, None, y, precision="ieee")
    linear.linear(x[-1:].clone(), weight, None, last, precision="ieee")
    assert torch.equal(y[-1:], last)
    linear.linear_grad_input(y, weight, x, precision="ieee")
    dx = poisoned((1, inputs), torch.bfloat16, x.device)
    linear.linear_grad_input(last, weight, dx, precision="ieee")
    assert torch.equal(x[-1:], dx)
