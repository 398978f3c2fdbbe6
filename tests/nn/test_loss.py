"""The losses against their torch.nn twins, and the calls that are left to torch."""

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.layers import TOLERANCE, error
from tvdnn import nn
from tvdnn.nn import eager


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
    """The losses have no dimension, one, or no element, or the target has a gradient."""
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


def assert_follows(ours: Tensor, exact: Tensor, dy: Tensor, x: Tensor, exact_x: Tensor) -> None:
    """A loss and its input's gradient by `dy` are near the same in float64."""
    ours.backward(dy)
    exact.backward(dy.double())
    assert ours.dtype == x.dtype
    assert x.grad is not None
    assert exact_x.grad is not None
    assert error(ours, exact) <= TOLERANCE[x.dtype]
    assert error(x.grad, exact_x.grad) <= TOLERANCE[x.dtype]


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
    assert_follows(ours, exact, dy, logits, exact_logits)


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
    twin.__class__ = getattr(torch.nn, type(layer).__name__)

    ours = layer(x, target)
    exact = twin(exact_x, target if classes else target.double())
    dy = torch.randn(ours.shape, **given).to(dtype)
    assert_follows(ours, exact, dy, x, exact_x)


def test_other_losses_are_torchs(device: torch.device) -> None:
    """They are of elements, sequences or probabilities, or have weights that are not by channel."""
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


def test_triton_launchers_of_losses(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, generator: torch.Generator
) -> None:
    monkeypatch.setattr(eager, "kernels_for", lambda x: eager.TRITON)
    for reduction in ("mean", "none"):
        test_cross_entropy_matches_its_twin(reduction, torch.float32, device, generator)
    for name in ("each", "pixels, all", "squares", "binary, weighted"):
        test_losses_match_their_twins(name, torch.float32, device, generator)
