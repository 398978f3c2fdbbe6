"""Draws that are no random numbers for each sample, and uses of such that are no ops."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.exact import Functional
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

SHAPE = (4, 5, 5)


def traced(way: Callable[[Tensor], Tensor], batch: int = 6) -> None:
    trace(
        Functional(lambda net, x: way(net.conv(x)), conv=nn.Conv2d(4, 4, 1)),
        (torch.randn(batch, *SHAPE),),
    )


def written_through_a_view(x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    noise.view(-1).mul_(2)
    return x + noise


def blank_written_through_a_view(x: Tensor) -> Tensor:
    noise = torch.empty_like(x)
    noise.view(len(x), -1).normal_()
    return x + noise


def written_by_a_map(x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    noise.add_(x)
    return noise


def two_forms(x: Tensor) -> Tensor:
    numbers = torch.rand_like(x)
    return x * (numbers < 0.3).float() + x * numbers


def two_shares(x: Tensor) -> Tensor:
    numbers = torch.rand_like(x)
    return x * (numbers < 0.3).float() + x * (numbers < 0.5).float()


def a_mask_and_the_other(x: Tensor) -> Tensor:
    """Stochastic depth draws its mask by itself."""
    mask = torch.floor(0.8 + torch.rand(len(x), 1, 1, 1, device=x.device))
    return x * mask + torch.tanh(x) * (1 - mask)


def the_other_and_a_mask(x: Tensor) -> Tensor:
    mask = torch.floor(0.8 + torch.rand(len(x), 1, 1, 1, device=x.device))
    return torch.tanh(x) * (1 - mask) + x * mask


def below_and_far_above(x: Tensor) -> Tensor:
    numbers = torch.rand_like(x)
    return x * (numbers < 0.25).float() * (numbers > 0.75).float()


def seen_before_the_draw(x: Tensor) -> Tensor:
    noise = torch.empty_like(x)
    first = noise[:, :1]
    noise.normal_()
    first.zero_()
    return x + noise


def beside_a_constant_written_since(x: Tensor) -> Tensor:
    scale = torch.ones(4, 1, 1)
    noise = torch.randn_like(x) * scale
    scale.mul_(2)
    return x + noise


def one_sample(x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    noise[0] = 0
    return x + noise


GENERATOR = torch.Generator()
VIEWED = "they are written where a view shows them"
REFUSED: list[tuple[Callable[[Tensor], Tensor], str]] = [
    (written_through_a_view, VIEWED),
    (blank_written_through_a_view, VIEWED),
    (written_by_a_map, "add_ writes a map into a tensor that does not come from the inputs"),
    (two_forms, "ops read them in two forms"),
    (two_shares, "ops read them in two forms"),
    (below_and_far_above, "ops read them in two forms"),
    (seen_before_the_draw, VIEWED),
    (beside_a_constant_written_since, "mul reads what is written behind it"),
    (a_mask_and_the_other, "a product by a mask of them draws others"),
    (the_other_and_a_mask, "a mask that another product reads already"),
    (one_sample, "__setitem__ is called on them"),
    (lambda x: x + torch.randn(4, 1, 1, device=x.device), "they are not drawn for each sample"),
    (lambda x: x + torch.randn(1, *SHAPE, device=x.device), "they are not drawn for each sample"),
    (lambda x: x + torch.randn(x.shape, generator=GENERATOR), "by a generator of its own"),
    (lambda x: x + torch.empty_like(x).log_normal_(), "log_normal_ draws them"),
    (lambda x: x + torch.empty_like(x).cauchy_().tanh(), "cauchy_ draws them"),
    (lambda x: x + torch.normal(torch.zeros_like(x), 1.0), "normal draws them"),
    (lambda x: x * torch.randn_like(x).argsort(1), "argsort"),
    (lambda x: x * torch.randn_like(x).sign(), "sign"),
    (lambda x: x * (torch.randn_like(x) > 0), "gt"),
    (lambda x: x * torch.rand_like(x).mul(2).floor(), "floor"),
    (lambda x: x * torch.randn_like(x).view(torch.int32), "view is called on them"),
    (lambda x: x * ((torch.rand_like(x) < 0.5) + (torch.rand_like(x) < 0.5)), "add is called on"),
    (lambda x: x * (torch.rand_like(x) < 0.5).to(torch.uint8).sub(1), "to is called on them"),
    (lambda x: x + nn.init.uniform_(torch.empty_like(x), -3, -2), "uniform_ draws them"),
    (lambda x: x + torch.randn_like(x).zero_(), "zero_ is called on them"),
    (lambda x: x + functional.leaky_relu_(torch.randn_like(x)), "leaky_relu_ is called on them"),
    (lambda x: x + torch.randn_like(x).new_ones(1), "new_ones is called on them"),
    (lambda x: torch.broadcast_tensors(x, torch.randn_like(x))[0], "broadcast_tensors"),
    (lambda x: functional.gumbel_softmax(x, hard=True, dim=1), "gumbel_softmax"),
]


@pytest.mark.parametrize(("way", "message"), REFUSED)
def test_other_draws_are_refused_by_line(way: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=rf"{message}.* at .*test_refused_draws\.py:\d+"):
        traced(way)


def test_numbers_of_as_many_rows_as_samples_stay_apart() -> None:
    """Of 4 channels and 4 samples: [4, 1, 1] could be either."""
    with pytest.raises(UnsupportedOpError, match="the first dimension is the batch"):
        traced(lambda x: x * torch.randn(4, 1, 1, device=x.device), batch=4)


@pytest.mark.parametrize("name", ["buffer", "parameter"])
def test_numbers_beside_a_tensor_that_forward_changes_since_are_refused(name: str) -> None:
    """An annealed strength: the op would read the new one."""

    def way(net: nn.Module, x: Tensor) -> Tensor:
        noise = torch.randn_like(x) * net.strength
        with torch.no_grad():
            net.strength.mul_(0.9)
        return net.conv(x) + noise

    net = Functional(way, conv=nn.Conv2d(4, 4, 1))
    strength = torch.ones(4, 1, 1)
    if name == "buffer":
        net.register_buffer("strength", strength)
    else:
        net.strength = nn.Parameter(strength)
    with pytest.raises(UnsupportedOpError, match="mul reads what is written behind it at"):
        trace(net, (torch.randn(2, *SHAPE),))


@pytest.mark.parametrize("view", [Tensor.view_as, Tensor.expand_as])
def test_a_view_by_a_map_of_what_is_written_since_is_refused(
    view: Callable[[Tensor, Tensor], Tensor],
) -> None:
    def way(x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        seen = view(noise, x)
        noise.mul_(2)
        return x + seen

    with pytest.raises(UnsupportedOpError, match="behind an operation that took a view of them"):
        traced(way)


CACHE: dict[str, Tensor] = {}


def test_numbers_that_something_holds_are_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="is still held after forward"):
        traced(lambda x: x + CACHE.setdefault("noise", torch.randn_like(x)))
    assert not CACHE
