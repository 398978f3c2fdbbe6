"""Linear layers: outputs, and gradients of inputs, weights and biases."""

from typing import Any, Final

import torch
from torch import Tensor

from bench.cases.case import At, KernelCase, Measured, checked
from bench.cases.launch import Launch, Peer, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.kernels.linear.passes import (
    linear,
    linear_grad_bias,
    linear_grad_input,
    linear_grad_weight,
    linear_shares,
)
from tvdnn.kernels.linear.transpose import turns

LAYERS: Final = ((25088, 4096), (4096, 4096), (4096, 1000))  # VGG-16's inputs and outputs
SAMPLES: Final = 256


def layer_of(size: Shape) -> tuple[int, int, int]:
    """Samples, inputs and outputs. Maps have an output, and four inputs, for each channel."""
    return (size[0], 4 * size[-1], size[-1]) if len(size) == 4 else (size[0], size[1], size[2])


def rounded(tensor: Tensor, precision: str) -> Tensor:
    """The values as the launches before leave them for products of this precision."""
    return stored_reference(tensor, tensor.dtype, precision)


def transposed(o: Operands, size: Shape, dtype: torch.dtype, precision: str) -> list[Tensor] | None:
    """Room for transposed operands, where the weight gradient takes any."""
    samples, *features = layer_of(size)
    if not turns(samples, dtype, precision):
        return None
    return [o.randn(each, samples, dtype=dtype) for each in features]


def _forward(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    precision: str = "tf32",
    shares: int = 1,
    bias: bool = True,
    **settings: Any,
) -> Launch:
    samples, inputs, outputs = layer_of(size)
    x, weight = o.randn(samples, inputs, dtype=dtype), o.randn(outputs, inputs, dtype=dtype)
    weight.mul_(inputs**-0.5)
    y, added = o.out(samples, outputs, dtype=dtype), o.randn(outputs) if bias else None
    partials = _partials(o, y, inputs, precision, shares)
    peer = Peer(lambda: y, lambda: x @ weight.T, lambda: x.double() @ weight.double().T)
    operands = (rounded(x, precision), rounded(weight, precision), added, y)
    settings = {"precision": precision, "partials": partials, **settings}
    return launching(linear, *operands, peer=peer, **settings)


def _partials(o: Operands, y: Tensor, terms: int, precision: str, shares: int) -> Tensor | None:
    """Room for the sums of a product's shares; of 0 for as many as its sizes ask for."""
    count = shares or linear_shares(y.shape[1], terms, y.dtype, precision)
    return None if count == 1 else o.randn(len(y), count, y.shape[1])


def _grad_input(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    precision: str = "tf32",
    shares: int = 1,
    masked: bool = False,
    **settings: Any,
) -> Launch:
    samples, inputs, outputs = layer_of(size)
    dy, weight = o.randn(samples, outputs, dtype=dtype), o.randn(outputs, inputs, dtype=dtype)
    weight.mul_(inputs**-0.5)
    dx = o.out(samples, inputs, dtype=dtype)
    mask = o.randn(samples, inputs, dtype=dtype) if masked else None
    partials = _partials(o, dx, outputs, precision, shares)
    peer = Peer(lambda: dx, lambda: dy @ weight, lambda: dy.double() @ weight.double())
    operands = (rounded(dy, precision), rounded(weight, precision), dx)
    settings = {"precision": precision, "mask": mask, "partials": partials, **settings}
    return launching(linear_grad_input, *operands, peer=peer, **settings)


def _grad_weight(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    precision: str = "tf32",
    group: int = 0,
    turned: bool = True,
) -> Launch:
    """A float32 gradient, of `group` samples each, by default of all."""
    samples, inputs, outputs = layer_of(size)
    x, dy = o.randn(samples, inputs, dtype=dtype), o.randn(samples, outputs, dtype=dtype)
    groups = -(-samples // group) if group else 1
    grad = o.out(groups, outputs, inputs) if groups > 1 else o.out(outputs, inputs)
    room = transposed(o, size, dtype, precision) if turned else None
    peer = Peer(lambda: grad, lambda: _product(dy.T, x), lambda: dy.double().T @ x.double())
    operands = (rounded(x, precision), rounded(dy, precision), grad)
    settings = {"group": group or samples, "precision": precision, "turned": room}
    return launching(linear_grad_weight, *operands, peer=peer, **settings)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """torch's, in float32."""
    if left.dtype == F32:
        return left @ right
    return torch.mm(left, right, out_dtype=F32)


def _grad_bias(o: Operands, size: Shape, dtype: torch.dtype = BF16, groups: int = 1) -> Launch:
    samples, _, outputs = layer_of(size)
    dy, partials = o.randn(samples, outputs, dtype=dtype), o.out(groups, outputs)
    return launching(linear_grad_bias, dy, partials, group=-(-samples // groups))


def _measured(kernel: str, **settings: Any) -> list[Measured]:
    return [
        Measured(
            kernel,
            (SAMPLES, *layer),
            settings,
            small=(5, 24, 8),
            set="linear",
            title=f"{layer[0]}->{layer[1]}",
            peer="cuBLAS",
        )
        for layer in LAYERS
    ]


EXACT, TF32, HALF = (
    {"dtype": F32, "precision": "ieee"},
    {"dtype": F32, "precision": "tf32"},
    {"dtype": BF16, "precision": "ieee"},
)
FC6, FC8, TINY = (256, 25088, 4096), (256, 4096, 1000), (256, 84, 10)
PRODUCTS: Final = (
    At(FC6, HALF, wgmma=True, tuned=True),
    At(TINY, HALF, wgmma=True),
    At(FC8, TF32),
    At(FC6, TF32),
    At((256, 85, 10), TF32),
    At(FC8, EXACT, tuned=True),
)
ONES: Final = tuple(At((1, 1, 1), {"dtype": dtype, "precision": "tf32"}) for dtype in (F32, BF16))


def _shared(**settings: Any) -> list[At]:
    """By whole products, and by sums of their shares."""
    sizes = ((FC6, HALF), (FC8, TF32))
    both = [{**each, **settings} for _, each in sizes]
    return [
        At(size, {**each, "shares": shares})
        for (size, _), each in zip(sizes, both, strict=True)
        for shares in (1, 4)
    ]


KINDS_OF_PRODUCTS = {"bf16": HALF, "tf32": TF32, "fp32": EXACT}
MASKED = {"masked": True, "scale": 2.0, "shares": 2}
CASES = (
    KernelCase(
        linear,
        _forward,
        KINDS_OF_PRODUCTS | {"ReLU, in shares": {"relu": True, "shares": 2, **HALF}},
        (*PRODUCTS, *_shared(relu=True), *ONES),
        _measured("linear", shares=0, bias=False),
    ),
    KernelCase(
        linear_grad_input,
        _grad_input,
        KINDS_OF_PRODUCTS | {"masked, in shares": {**MASKED, **HALF}},
        (*PRODUCTS, *_shared(masked=True, scale=2.0), *ONES),
        _measured("linear_grad_input", shares=0),
    ),
    KernelCase(
        linear_grad_weight,
        _grad_weight,
        KINDS_OF_PRODUCTS,
        (
            *PRODUCTS,
            At((3, 4096, 1000), {**HALF, "group": 256}, wgmma=True),
            *(At(each.size, {**each.settings, "turned": False}) for each in ONES),
        ),
        _measured("linear_grad_weight"),
    ),
    KernelCase(
        linear_grad_bias,
        _grad_bias,
        checked(dtype=[BF16, F32]),
        (At((256, 1, 1000)), *(At((1, 1, 1), {"dtype": dtype}) for dtype in (F32, BF16))),
    ),
)
