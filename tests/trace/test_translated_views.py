"""Calls that change the shape or order of dimensions: views, moves and refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tvdnn.nn
from tests.support.exact import Functional
from tests.support.traced_networks import kinds, returning, run, stored
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace


@pytest.mark.parametrize(
    ("layer", "shape", "kind"),
    [
        (torch.nn.Flatten(), (2, 3, 4, 5), "flatten"),
        (torch.nn.Flatten(), (2, 3, 1, 1), "view"),
        (torch.nn.Flatten(), (2, 1, 4, 5), "view"),
        (torch.nn.Flatten(), (2, 7), "view"),
        (torch.nn.AdaptiveAvgPool2d((4, 5)), (2, 3, 4, 5), "view"),
        (torch.nn.AdaptiveAvgPool2d((None, 1)), (2, 3, 4, 5), "adaptive_avg_pool2d"),
        (torch.nn.AvgPool2d(1), (2, 3, 4, 5), "view"),
        (torch.nn.AvgPool2d(1, stride=2), (2, 3, 4, 5), "avg_pool2d"),
        (torch.nn.AvgPool2d(1, divisor_override=2), (2, 3, 4, 5), "avg_pool2d"),
        (torch.nn.Dropout(0.0), (2, 3, 4, 5), "view"),
        (torch.nn.Dropout(0.5), (2, 3, 4, 5), "dropout"),
        (torch.nn.Dropout(0.5).eval(), (2, 3, 4, 5), "view"),
        (torch.nn.Identity(), (2, 3, 4, 5), None),
    ],
    ids=str,
)
def test_what_moves_no_bytes_is_a_view(
    layer: torch.nn.Module, shape: tuple[int, ...], kind: str | None
) -> None:
    network = trace(torch.nn.Sequential(torch.nn.ReLU(), layer), (torch.empty(shape),))
    assert kinds(network) == (["relu", kind] if kind else ["relu"])


def reshaped(*shape: int) -> torch.nn.Module:
    return Functional(lambda _, x: x.relu().contiguous().view(shape))


@pytest.mark.parametrize(
    ("shape", "target", "kind"),
    [
        ((2, 3, 4, 5), (2, -1), "flatten"),
        ((2, 3, 4, 5), (2, 60), "flatten"),
        ((2, 3, 4, 5), (2, 3, 4, 5), "view"),
        ((2, 6), (2, 6, 1, 1), "view"),
        ((2, 6), (2, 1, 2, 3), "view"),
        ((2, 6, 1, 1), (-1, 1, 2, 3), "view"),
    ],
)
def test_reshapes(shape: tuple[int, ...], target: tuple[int, ...], kind: str) -> None:
    module, x = reshaped(*target), torch.randn(shape)
    network = trace(module, [x])
    assert kinds(network) == ["relu", "view", kind]
    assert torch.equal(run(network, module, [x])[0], stored(module(x)))


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((2, 3, 4, 5), (6, 20)),
        ((2, 6), (4, 3)),
    ],
)
def test_other_reshapes_are_refused(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedOpError, match=r"Functional: reshape of \(2.*to \("):
        trace(reshaped(*target), (torch.empty(shape),))


class Permuted(torch.nn.Module):
    """Layers over the channels of maps whose channels are last, and ways to make such maps."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(3, eps=1e-3)
        self.fc = tvdnn.nn.Linear(3, 5)
        self.out = tvdnn.nn.LayerNorm(100, elementwise_affine=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.fc(self.norm(torch.permute(x, (0, 2, 3, 1))))
        y = functional.dropout(functional.relu(y), 0.0)
        back = torch.transpose(y.transpose(1, -1), 2, 3)
        turned = functional.linear(x.permute([0, 3, 2, 1]).transpose(1, 2), self.fc.weight)
        return self.out(y.flatten(1)), back.reshape(2, -1), functional.max_pool2d(back, 2), turned


def test_permuted_maps_are_the_same_bytes() -> None:
    module, x = Permuted(), torch.randn(2, 3, 4, 5)
    network = trace(module, [x])
    found = dict(zip(network.outputs, run(network, module, [x]), strict=True))
    for name, exact in zip(network.outputs, module(x), strict=True):
        value = network.values[name]
        ours = found[name].permute(value.torch_axes)
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)
    assert kinds(network) == [
        *("view", "layer_norm", "conv2d", "relu", "view", "view", "view", "view", "view"),
        *("conv2d", "view", "layer_norm", "flatten", "max_pool2d"),
    ]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda x: functional.layer_norm(x, (4, 5)), r"layer_norm of .* over \(4, 5\)"),
        (lambda x: x.transpose(0, 1), "permute of the batch"),
    ],
)
def test_what_would_move_permuted_bytes_is_refused(
    way: Callable[[Tensor], Any], message: str
) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(returning(way), (torch.empty(2, 3, 4, 5),))
