"""Dropout of elements, channels and samples: dropped values, gradients and seeds."""

import pytest
import torch

from tvdnn import nn
from tvdnn.errors import InputError
from tvdnn.nn import eager


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("p", [0.25, 0.5, 1.0])
def test_dropout_drops_and_scales(p: float, inplace: bool, device: torch.device) -> None:
    torch.manual_seed(5)
    x = torch.ones(64, 5, 8, 8, device=device, requires_grad=True)
    y = nn.Dropout(p, inplace)(x * 1.0)
    y.backward(torch.full_like(y, 3.0))
    kept = y != 0
    scale = 1 / (1 - p) if p < 1 else 0.0
    assert x.grad is not None
    assert abs(float(kept.float().mean()) - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-9
    assert torch.equal(y, kept * scale)
    assert torch.equal(x.grad, kept * 3.0 * scale)


@pytest.mark.parametrize(
    ("layer", "dims"),
    [
        (nn.Dropout2d(0.4), (2, 3)),
        (nn.StochasticDepth(0.4, "row"), (1, 2, 3)),
        (nn.StochasticDepth(0.4, "batch"), (0, 1, 2, 3)),
    ],
)
def test_parts_drop_whole_and_scale(
    layer: torch.nn.Module, dims: tuple[int, ...], device: torch.device
) -> None:
    x, kinds = torch.rand(64, 5, 3, 2, device=device, requires_grad=True), set()
    for seed in range(6):
        torch.manual_seed(seed)
        y = layer(x)
        (dx,) = torch.autograd.grad(y, x, torch.full_like(y, 3.0))
        kept = (y != 0).float().amax(dims, keepdim=True)
        kinds |= set(kept.unique().tolist())
        torch.testing.assert_close(y, x * kept / 0.6)
        torch.testing.assert_close(dx, (3.0 * kept / 0.6).expand_as(x))
    assert kinds == {0.0, 1.0}
    assert layer.eval()(x) is x


def test_stochastic_depth_of_features(device: torch.device) -> None:
    y = nn.StochasticDepth(0.5, "row")(torch.ones(50, 4, device=device))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(y, y[:, :1].expand_as(y))
    with pytest.raises(InputError, match="p is 2 and mode 'row'"):
        nn.StochasticDepth(2, "row")


def test_dropout_follows_torchs_seed(device: torch.device) -> None:
    layer, x = nn.Dropout(), torch.ones(4, 100, device=device)
    draws = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        draws.append(layer(x))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert layer.eval()(x) is x


def test_triton_launchers_of_dropout(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(eager, "kernels_for", lambda x: eager.TRITON)
    test_dropout_drops_and_scales(0.5, False, device)
