"""Updates in a product's epilogue equal the weight gradient and then the update, to the bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import assert_repeatable, poisoned, randn
from tvdnn.kernels.linear import fused_update as linear_update
from tvdnn.kernels.linear import passes as linear
from tvdnn.kernels.optim import update as optim

SETTINGS = [(torch.float32, "ieee"), (torch.float32, "tf32"), (torch.bfloat16, "ieee")]
SHAPES = [(3, 10, 84), (1, 1, 1), (131, 24, 40), (200, 130, 72)]
SGD = {"nesterov": True, "maximize": False}


def operands(
    shape: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
    """x [N, F], dy [N, O]; a parameter [O, F] and two states, not negative; and settings."""
    samples, outputs, inputs = shape
    x, dy = (randn((samples, size), dtype, generator) for size in (inputs, outputs))
    tensors = [randn((outputs, inputs), torch.float32, generator).abs() for _ in range(3)]
    control = torch.tensor([0.1, 0.9, 0.2, 1e-3, 0.0, 0.7, 0.3, 0.0], device=x.device)
    return x, dy, tensors, control


@pytest.mark.parametrize(
    ("dtype", "precision", "transposes"),
    [*((*setting, False) for setting in SETTINGS), (torch.float32, "tf32", True)],
    ids=str,
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_equals_gradient_and_update(
    suffix: str,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    precision: str,
    transposes: bool,
    generator: torch.Generator,
) -> None:
    x, dy, tensors, control = operands(shape, dtype, generator)
    grad = poisoned(tensors[0].shape, torch.float32, x.device)
    options = {"precision": precision, "transposed": None}
    if transposes:
        options["transposed"] = [x.new_empty(matrix.shape[::-1]) for matrix in (x, dy)]
    getattr(linear, f"linear_grad_weight{suffix}")(x, dy, grad, group=shape[0], **options)
    cases: list[tuple[str, int, dict[str, Any]]] = [
        ("sgd", 2, SGD), ("sgd", 1, SGD), ("adamw", 3, {"maximize": True})
    ]  # fmt: skip
    for rule, count, switches in cases:
        ours, expected = ([tensor.clone() for tensor in tensors[:count]] for _ in range(2))
        states, others = ([None] if count == 1 else kept[1:] for kept in (ours, expected))
        update = getattr(optim, rule + suffix)
        update(expected[0], grad, *others, control, **switches)
        fused = getattr(linear_update, f"linear_grad_weight_{rule}{suffix}")
        fused(x, dy, ours[0], *states, control, **switches, **options)
        assert all(map(torch.equal, ours, expected))
        assert ours[0].isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "precision"), SETTINGS, ids=str)
def test_repeats(dtype: torch.dtype, precision: str, generator: torch.Generator) -> None:
    x, dy, before, control = operands((200, 520, 1032), dtype, generator)
    param, mean, square = (tensor.clone() for tensor in before)

    def launch() -> None:
        for tensor, start in zip((param, mean, square), before, strict=True):
            tensor.copy_(start)
        linear_update.linear_grad_weight_adamw(
            x, dy, param, mean, square, control, maximize=False, precision=precision
        )

    assert_repeatable(launch, param, mean, square)
