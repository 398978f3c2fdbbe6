"""The benchmark's cases compare like with like: both sides compute what float64 does."""

from collections.abc import Callable

import pytest
import torch

from bench.cases import batch_norm, conv, linear, maps, params, pointwise, rows
from bench.cases.case import Calls
from bench.kernels import errors

VGG16_MACS = 15_346_630_656  # of the convolutions, for one image (Simonyan and Zisserman 2014)
RESNET50_MACS = 4_087_136_256
SMALL = (conv.Layer(9, 3, 8, 7, 2), conv.Layer(6, 16, 8, 1), conv.Layer(7, 8, 16, 3, 2))


def test_layers_are_those_of_the_networks() -> None:
    assert [sum(layer.count for layer in net) for net in (conv.VGG16, conv.RESNET50)] == [13, 53]
    macs = [sum(layer.count * layer.macs for layer in net) for net in (conv.VGG16, conv.RESNET50)]
    assert macs == [VGG16_MACS, RESNET50_MACS]


CONVOLUTIONS = (
    *conv.cases(SMALL, "tf32", samples=3),
    *conv.cases(SMALL[1:], "tf32", samples=3, passes={"masked": conv.masked_grad_input}),
    *conv.moment_cases((conv.Layer(9, 3, 32, 7, 2), conv.Layer(6, 32, 40, 1)), "tf32", samples=3),
)
F32, BF16 = torch.float32, torch.bfloat16
MAPS, SMALLEST, WIDE = (3, 9, 9, 16), (2, 3, 3, 16), (4, 40)
ELEMENTWISE: dict[str, Callable[[], Calls]] = {
    "relu": lambda: maps.relu(MAPS, BF16),
    "relu_grad": lambda: maps.relu_grad(MAPS, BF16),
    "max_pool2d": lambda: maps.pooling(MAPS, BF16, maps.windows(3)),
    "max_pool2d_grad": lambda: maps.pooling_grad(MAPS, F32, maps.windows(3)),
    "max_pool2d_codes": lambda: maps.pooling_codes(MAPS, F32, maps.windows(2)),
    "max_unpool2d": lambda: maps.unpooling(MAPS, F32, maps.windows(3)),
    "adaptive_avg_pool2d": lambda: maps.adaptive((2, 14, 14, 8), F32),
    "batch_norm": lambda: batch_norm.normalized(MAPS, F32),
    "batch_norm_grad": lambda: batch_norm.gradient(MAPS, F32),
    "local_response_norm": lambda: maps.lrn(MAPS, F32),
    "local_response_norm_grad": lambda: maps.lrn_grad(MAPS, F32),
    "add": lambda: maps.sum_of_two(MAPS, F32),
    "stage": lambda: maps.stage(MAPS, BF16),
    "bias gradient": lambda: maps.bias_grad(MAPS, F32),
    "multiply": lambda: pointwise.multiply(MAPS, F32),
    "gate": lambda: pointwise.gated(MAPS, BF16),
    "gate_grad": lambda: pointwise.gate_grad(MAPS, F32),
    "softmax": lambda: pointwise.softmaxed(MAPS, F32),
    "resize nearest": lambda: pointwise.doubled(MAPS, F32, "nearest"),
    "resize bilinear": lambda: pointwise.doubled(SMALLEST, F32, "bilinear"),
    "resize_grad nearest": lambda: pointwise.doubled_grad(SMALLEST, F32, "nearest"),
    "resize_grad bilinear": lambda: pointwise.doubled_grad(SMALLEST, F32, "bilinear"),
    "dropout": lambda: rows.dropped(WIDE, F32),
    "cross_entropy": lambda: rows.cross_entropy(WIDE, F32),
    "sgd": lambda: params.sgd(WIDE),
    "adamw": lambda: params.adamw(WIDE),
    "sgd_partials": lambda: params.sgd_partials((3, 8, 3, 3, 4)),
    "cast": lambda: params.cast(WIDE),
    "sum_partials": lambda: params.sum_partials((3, 8, 3, 3, 4)),
}
LINEAR = {
    "linear": linear.forward,
    "linear_grad_input": linear.grad_input,
    "linear_grad_weight": linear.grad_weight,
}


def assert_alike(calls: Calls) -> None:
    ours, theirs = errors(calls, calls.part(calls.own()).double().clone())
    assert ours < 5e-3  # bfloat16 rounds by half of that
    assert theirs is None or theirs < 5e-3


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: f"{case.kernel} {case.shape}")
def test_both_sides_of_a_convolution_compute_the_same(
    case: conv.Case, device: torch.device
) -> None:
    with device:
        assert_alike(case.make(case.samples))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_both_sides_of_an_elementwise_kernel_compute_the_same(
    name: str, device: torch.device
) -> None:
    with device:
        assert_alike(ELEMENTWISE[name]())


@pytest.mark.parametrize("name", LINEAR)
def test_both_sides_of_a_product_compute_the_same(name: str, device: torch.device) -> None:
    with device:
        assert_alike(LINEAR[name](linear.Operands(24, 8, F32, 5)))
