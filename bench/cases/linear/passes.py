"""Linear layers: outputs, and gradients of inputs, weights and biases."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, At, KernelCase, Measured
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
from tvdnn.kernels.linear.transpose import needs_transposed

LAYERS: Final = ((25088, 4096), (4096, 4096), (4096, 1000))  # VGG-16's inputs and outputs
SAMPLES: Final = 256


class LinearLayer:
    """The operands of a linear layer's launch. Each call makes one more.

    Maps have an output, and four inputs, for each channel.
    """

    def __init__(self, o: Operands, size: Shape, dtype: torch.dtype, precision: str) -> None:
        self.o, self.dtype, self.precision = o, dtype, precision
        self.samples = size[0]
        self.inputs, self.outputs = (4 * size[-1], size[-1]) if len(size) == 4 else size[1:]

    def maps(self, features: int) -> Tensor:
        return self.o.randn(self.samples, features, dtype=self.dtype)

    def out(self, features: int) -> Tensor:
        return self.o.out(self.samples, features, dtype=self.dtype)

    def weight(self) -> Tensor:
        weight = self.o.randn(self.outputs, self.inputs, dtype=self.dtype)
        return weight.mul_(self.inputs**-0.5)

    def rounded(self, tensor: Tensor) -> Tensor:
        """The values as the launches before leave them for products."""
        return stored_reference(tensor, tensor.dtype, self.precision)

    def partials(self, out: Tensor, terms: int, shares: int) -> Tensor | None:
        """Room for the sums of a product's shares; of 0 for as many as its sizes ask for."""
        count = shares or linear_shares(out.shape[1], terms, self.dtype, self.precision)
        return None if count == 1 else self.o.randn(len(out), count, out.shape[1])

    def transposed(self) -> list[Tensor] | None:
        """Room for transposed operands, where the weight gradient takes any."""
        if not needs_transposed(self.samples, self.dtype, self.precision):
            return None
        features = (self.inputs, self.outputs)
        return [self.o.randn(each, self.samples, dtype=self.dtype) for each in features]


def of_layer(make: Callable[..., Launch]) -> Callable[..., Launch]:
    """A maker for a case, from one that takes a layer in place of a size and a type."""

    @wraps(make)
    def made(
        o: Operands,
        size: Shape,
        dtype: torch.dtype = BF16,
        precision: str = "tf32",
        **settings: Any,
    ) -> Launch:
        return make(o, LinearLayer(o, size, dtype, precision), **settings)

    return made


@of_layer
def _forward(
    o: Operands, layer: LinearLayer, shares: int = 1, bias: bool = True, **settings: Any
) -> Launch:
    x, weight, y = layer.maps(layer.inputs), layer.weight(), layer.out(layer.outputs)
    added = o.randn(layer.outputs) if bias else None
    partials = layer.partials(y, layer.inputs, shares)
    peer = Peer(lambda: y, lambda: x @ weight.T, lambda: x.double() @ weight.double().T)
    operands = (layer.rounded(x), layer.rounded(weight), added, y)
    settings = {"precision": layer.precision, "partials": partials, **settings}
    return launching(linear, *operands, peer=peer, **settings)


@of_layer
def _grad_input(
    o: Operands, layer: LinearLayer, shares: int = 1, masked: bool = False, **settings: Any
) -> Launch:
    dy, weight, dx = layer.maps(layer.outputs), layer.weight(), layer.out(layer.inputs)
    settings["mask"] = layer.maps(layer.inputs) if masked else None
    settings["partials"] = layer.partials(dx, layer.outputs, shares)
    peer = Peer(lambda: dx, lambda: dy @ weight, lambda: dy.double() @ weight.double())
    operands = (layer.rounded(dy), layer.rounded(weight), dx)
    return launching(linear_grad_input, *operands, peer=peer, precision=layer.precision, **settings)


@of_layer
def _grad_weight(
    o: Operands, layer: LinearLayer, group: int = 0, transposed: bool = True
) -> Launch:
    """A float32 gradient, of `group` samples each, by default of all."""
    x, dy = layer.maps(layer.inputs), layer.maps(layer.outputs)
    groups = -(-layer.samples // group) if group else 1
    shape = (layer.outputs, layer.inputs)
    grad = o.out(groups, *shape) if groups > 1 else o.out(*shape)
    room = layer.transposed() if transposed else None
    peer = Peer(lambda: grad, lambda: _product(dy.T, x), lambda: dy.double().T @ x.double())
    operands = (layer.rounded(x), layer.rounded(dy), grad)
    settings = {"group": group or layer.samples, "precision": layer.precision, "transposed": room}
    return launching(linear_grad_weight, *operands, peer=peer, **settings)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """torch's, in float32."""
    if left.dtype == F32:
        return left @ right
    return torch.mm(left, right, out_dtype=F32)


@of_layer
def _grad_bias(o: Operands, layer: LinearLayer, groups: int = 1) -> Launch:
    dy, partials = layer.maps(layer.outputs), o.out(groups, layer.outputs)
    return launching(linear_grad_bias, dy, partials, group=-(-layer.samples // groups))


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
    """Launches by whole products, and by sums of their shares."""
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
            *(At(each.size, {**each.settings, "transposed": False}) for each in ONES),
        ),
        _measured("linear_grad_weight"),
    ),
    KernelCase(
        linear_grad_bias,
        _grad_bias,
        BY_TYPE,
        (At((256, 1, 1000)), *(At((1, 1, 1), {"dtype": dtype}) for dtype in (F32, BF16))),
    ),
)
