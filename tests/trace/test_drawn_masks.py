"""Stochastic depth that a network writes by torch's functions, and masks that are refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tvdnn
from tests.support.exact import Functional
from tvdnn.engine import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.graph.network import Network, Op
from tvdnn.trace.trace import trace

KEEP = 0.8
SHAPE = (6, 4, 5, 5)
Way = Callable[[Tensor], Tensor]


def drawn(x: Tensor, *shape: int) -> Tensor:
    return torch.rand(shape or (len(x), 1, 1, 1), dtype=x.dtype, device=x.device)


def by_floor(x: Tensor) -> Tensor:
    """EfficientNet's: Tan and Le, 2019."""
    mask = KEEP
    mask += drawn(x)
    return x / KEEP * torch.floor(mask)


def by_bernoulli(x: Tensor) -> Tensor:
    """timm's."""
    mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(KEEP)
    if KEEP > 0.0:
        mask.div_(KEEP)
    return x * mask


def in_place(x: Tensor) -> Tensor:
    mask = drawn(x)
    mask.add_(KEEP).floor_()
    return x.div(KEEP).mul_(mask)


def by_comparison(x: Tensor) -> Tensor:
    return (drawn(x, len(x)) >= 1 - KEEP).to(x.dtype).view(-1, 1, 1, 1) / KEEP * x


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        mask = torch.empty(len(x), device=x.device).uniform_().add(KEEP).floor()
    return x.div(KEEP) * mask.reshape(-1, 1, 1, 1)


MASKED: list[Way] = [by_floor, by_bernoulli, in_place, by_comparison, without_gradient]


def net_of(way: Way) -> nn.Module:
    torch.manual_seed(3)
    return Functional(
        lambda net, x: net.last(x + way(net.conv(x))),
        conv=nn.Conv2d(4, 4, 1),
        last=nn.Conv2d(4, 4, 1),
    )


def traced(way: Way) -> Network:
    return trace(net_of(way), (torch.randn(SHAPE),))


def settings(op: Op) -> dict[str, object]:
    return {name: round(x, 6) if isinstance(x, float) else x for name, x in op.attrs.items()}


@pytest.mark.parametrize("way", MASKED)
def test_a_mask_of_samples_is_the_op_of_the_layer(way: Way) -> None:
    """So a product by it costs no more than the layer."""
    layer = tvdnn.nn.StochasticDepth(1 - KEEP, "row")
    wanted, found = traced(layer), traced(way)
    assert [each.kind for each in found.ops] == [each.kind for each in wanted.ops]
    (mine,), (theirs,) = (
        [settings(op) for op in each.ops if op.kind == "dropout_parts"] for each in (found, wanted)
    )
    assert mine == theirs


def unscaled(x: Tensor) -> Tensor:
    return x * torch.floor(drawn(x) + 0.5)


def of_tokens(x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    return (tokens * (drawn(x, len(x), 1, 1) < 0.5).float()).transpose(1, 2).reshape(x.shape)


def read_twice(x: Tensor) -> Tensor:
    """The scaled map has two readers."""
    scaled = x * 4
    return scaled - 3 * x + scaled.mul(torch.empty(len(x), 1, 1, 1, device=x.device).bernoulli_())


@pytest.mark.parametrize(
    ("way", "kept", "dropped"), [(unscaled, 1, 0), (of_tokens, 1, 0), (read_twice, 5, 1)]
)
def test_samples_are_as_they_are_or_dropped(way: Way, kept: float, dropped: float) -> None:
    net = Functional(lambda net, x: (way(net.conv(x)), net.conv(x)), conv=nn.Conv2d(4, 4, 1))
    x = torch.randn(64, *SHAPE[1:])
    virtual = virtualize(net, x)
    found, plain = virtual(x)
    errors = [
        (found - factor * plain).detach().abs().flatten(1).amax(1) for factor in (kept, dropped)
    ]
    assert torch.stack(errors).amin(0).max() < 1e-5
    assert 10 < (errors[0] < errors[1]).sum() < 54
    virtual.close()


def both(x: Tensor) -> Tensor:
    mask = torch.floor(KEEP + drawn(x))
    return x * mask + torch.tanh(x) * mask


def of_one_draw(x: Tensor) -> Tensor:
    numbers = drawn(x)
    return x * torch.floor(KEEP + numbers) + torch.tanh(x) * torch.floor(0.5 + numbers)


def through_a_view(x: Tensor) -> Tensor:
    numbers = drawn(x)
    view = numbers.view(-1)
    numbers += KEEP
    view.mul_(2)
    return x * numbers.floor_()


def written(x: Tensor) -> Tensor:
    mask = torch.floor(KEEP + drawn(x))
    mask[0] = 1
    return x * mask


DRAWS = "whose computation draws random numbers"
REFUSED: list[tuple[Way, str]] = [
    (both, "by a mask that another product reads already"),
    (of_one_draw, "by a mask that another product reads already"),
    (through_a_view, f"{DRAWS}.*: they are written where a view shows them"),
    (written, f"{DRAWS}.*: __setitem__ is called on them"),
    (lambda x: x * torch.floor(KEEP + drawn(x, 1, 1, 1, 1)).expand(6, 1, 1, 1), DRAWS),
    (lambda x: x * torch.floor(1.5 + drawn(x)), "floor"),
    (lambda x: x + torch.floor(KEEP + drawn(x)), DRAWS),
    (lambda x: x * torch.floor(KEEP + drawn(x)).to(torch.int32), "to is called on them"),
    (lambda x: x * torch.floor(KEEP + drawn(x)).view(torch.int32), "view is called on them"),
    (lambda x: x * torch.empty(6, 1, 1, 1, device=x.device).normal_().add_(1).floor_(), "floor"),
]


@pytest.mark.parametrize(("way", "message"), REFUSED)
def test_other_draws_are_refused(way: Way, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        traced(way)


CACHE: dict[str, Tensor] = {}


def cached(x: Tensor) -> Tensor:
    if "mask" not in CACHE:
        CACHE["mask"] = torch.floor(KEEP + drawn(x))
    return x * CACHE["mask"]


def cached_draw(x: Tensor) -> Tensor:
    return x * torch.floor(KEEP + CACHE.setdefault("draw", drawn(x)))


@pytest.mark.parametrize("way", [cached, cached_draw])
def test_a_mask_that_something_holds_is_refused(way: Way) -> None:
    """Torch would read the same one in each step."""
    with pytest.raises(UnsupportedOpError, match=r"a mask is still held after forward.* at"):
        traced(way)
    assert not CACHE


def seeded(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return by_bernoulli(x)


def put_back(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return by_bernoulli(x)


@pytest.mark.parametrize(("way", "name"), [(seeded, "manual_seed"), (put_back, "set_rng_state")])
def test_random_numbers_of_a_seed_are_refused(way: Way, name: str) -> None:
    net, x = net_of(way), torch.randn(SHAPE)
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedOpError, match=f"{name} in forward, which sets the state"):
        trace(net, (x,))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "way",
    [
        lambda x: torch.topk(x + drawn(x), 5)[0],
        lambda x: 2 * x if torch.allclose(x, drawn(x)) else x,
        lambda x: x[drawn(x) > 0],
    ],
)
def test_calls_of_other_results_are_refused(way: Way) -> None:
    with pytest.raises(UnsupportedOpError, match=" at "):
        traced(way)


def test_a_draw_that_decides_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="item reads a value"):
        traced(lambda x: x if drawn(x, 1).item() < KEEP else 2 * x)
