"""Constructors, arguments and first weights of the layers are those of torch's."""

import inspect
from collections.abc import Callable

import pytest
import torch

from tests.support.layers import TOLERANCE, error, twin_of
from tvdnn import nn


def twins_with_forwards() -> list[str]:
    """Layers of tvdnn.nn that torch.nn has, too."""
    return [name for name in nn.__all__ if hasattr(getattr(torch.nn, name, None), "forward")]


@pytest.mark.parametrize("name", twins_with_forwards())
def test_constructor_is_torchs(name: str) -> None:
    kind, twin = getattr(nn, name), getattr(torch.nn, name)
    assert issubclass(kind, twin)
    assert inspect.signature(kind) == inspect.signature(twin)


def test_weights_start_as_torchs() -> None:
    for kind, sizes in (("Conv2d", (3, 4, 3)), ("Linear", (5, 6))):
        torch.manual_seed(3)
        ours = getattr(nn, kind)(*sizes).state_dict()
        torch.manual_seed(3)
        twin = getattr(torch.nn, kind)(*sizes).state_dict()
        assert list(ours) == list(twin)
        assert all(torch.equal(ours[name], twin[name]) for name in twin)


@pytest.mark.parametrize(
    ("lazy", "shape", "kind"),
    [
        (lambda: nn.LazyLinear(4), (2, 6), nn.Linear),
        (lambda: nn.LazyConv2d(4, 3), (2, 6, 5, 5), nn.Conv2d),
    ],
)
def test_lazy_layers_become_tvdnns(
    lazy: Callable[[], torch.nn.Module],
    shape: tuple[int, ...],
    kind: type[torch.nn.Module],
    device: torch.device,
) -> None:
    layer = lazy().to(device)
    x = torch.randn(shape, device=device)
    y = layer(x)
    assert type(layer) is kind
    assert layer.weight.shape[1] == shape[1]
    assert "tvdnn" not in type(twin_of(layer, torch.float32)).__module__
    assert error(y, twin_of(layer, torch.float32)(x.double())) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("name", twins_with_forwards())
def test_arguments_are_named_as_torchs_are(name: str) -> None:
    ours, theirs = (getattr(layers, name).forward for layers in (nn, torch.nn))
    assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]
