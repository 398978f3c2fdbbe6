"""Random numbers that a forward draws for each sample, and draws that are none of these."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.exact import Functional
from tvdnn.engine import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.graph.network import Network
from tvdnn.trace.trace import trace

BATCH, SHAPE = 64, (4, 5, 5)
Draw = Callable[[Tensor], Tensor]
Use = Callable[[Tensor, Tensor], Tensor]  # of a map and of random numbers

DRAWS: dict[str, tuple[Draw, float, float]] = {  # with mean and deviation
    "like": (torch.randn_like, 0, 1),
    "uniform": (torch.rand_like, 0.5, 12**-0.5),
    "of a shape": (lambda x: torch.randn(x.shape, device=x.device), 0, 1),
    "moved": (lambda x: torch.randn(x.size()).to(x.device), 0, 1),
    "typed": (lambda x: torch.randn(*x.shape, dtype=x.dtype, device=x.device), 0, 1),
    "channels": (lambda x: torch.randn(len(x), 4, device=x.device)[:, :, None, None], 0, 1),
    "one channel": (lambda x: torch.randn(len(x), 1, 5, 5, device=x.device), 0, 1),
    "samples": (lambda x: torch.rand(len(x), device=x.device).view(-1, 1, 1, 1), 0.5, 12**-0.5),
    "filled": (lambda x: torch.empty_like(x).normal_(2, 0.5), 2, 0.5),
    "new": (lambda x: x.new_zeros(x.shape).uniform_(-1, 3), 1, 4 / 12**0.5),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.5),
    "by normal": (lambda x: torch.normal(1.0, 2.0, tuple(x.shape), device=x.device), 1, 2),
    "computed": (lambda x: 3 - 2 * torch.randn_like(x).mul(0.5), 3, 1),
    "in place": (lambda x: torch.randn_like(x).mul_(3).add_(1), 1, 3),
    "kept": (lambda x: (torch.rand_like(x) < 0.3).float() / 0.3, 1, (0.7 / 0.3) ** 0.5),
    "Bernoulli's": (lambda x: torch.empty_like(x).bernoulli_(0.25), 0.25, 0.1875**0.5),
    "the other": (lambda x: 1 - torch.zeros_like(x).bernoulli_(0.25), 0.75, 0.1875**0.5),
    "by a number": (lambda x: 2 / (1 + torch.empty_like(x).bernoulli_(p=0.5)), 1.5, 0.5),
    "like a map": (lambda x: torch.randn(x.shape).to(x), 0, 1),
    "typed as a map": (lambda x: torch.rand(x.shape).type_as(x), 0.5, 12**-0.5),
    "of torch 0.3": (lambda x: x.data.new(x.size()).normal_(), 0, 1),
    "rectified": (lambda x: functional.relu(torch.randn_like(x), inplace=True), 0.399, 0.584),
    "shifted": (lambda x: torch.rand_like(x) + 0.5, 1, 12**-0.5),
    "clamped": (lambda x: torch.randn_like(x).clamp(min=0), (2 * math.pi) ** -0.5, 0.584),
}
USES: dict[str, Use] = {
    "sum": lambda h, n: h + n,
    "product": lambda h, n: h * n,
    "spread": lambda h, n: h + torch.exp(0.5 * h) * n,
    "twice": lambda h, n: h * n + torch.tanh(n),
    "squared": lambda h, n: h + n * n,
    "beside": lambda h, n: torch.cat([h, n.expand_as(h)], 1)[:, 2:6],
}


def drawing(draw: Draw, use: Use) -> nn.Module:
    """Returns what is made of the map and of the numbers, and both."""
    torch.manual_seed(3)

    def way(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        h = net.conv(x)
        numbers = draw(h)
        return use(h, numbers), h, numbers

    return Functional(way, conv=nn.Conv2d(4, 4, 1))


CASES = {
    **{name: (draw, USES["spread"], *moments) for name, (draw, *moments) in DRAWS.items()},
    **{name: (torch.randn_like, use, 0, 1) for name, use in USES.items()},
}


@pytest.mark.parametrize(("draw", "use", "mean", "deviation"), CASES.values(), ids=CASES)
def test_an_op_reads_numbers_that_have_their_distribution(
    draw: Draw, use: Use, mean: float, deviation: float
) -> None:
    net, x = drawing(draw, use), torch.randn(BATCH, *SHAPE)
    virtual = virtualize(net, x)
    found, h, numbers = virtual(x)
    known, leaf = numbers.detach(), h.detach().requires_grad_()
    count, deviations = known.numel(), known.std().item()
    assert abs(known.mean().item() - mean) < 5 * deviation / count**0.5
    assert abs(deviations - deviation) < 10 * deviation / count**0.5
    torch.testing.assert_close(found, use(leaf, known))
    wanted = torch.autograd.grad(use(leaf, known).square().sum(), leaf)[0]
    found.square().sum().backward()
    torch.testing.assert_close(
        net.conv.bias.grad, wanted.sum((0, 2, 3)), rtol=1e-4, atol=1e-4 * float(wanted.abs().max())
    )
    assert not torch.equal(known, virtual(x)[2])
    virtual.close()


def traced(way: Callable[[Tensor], Tensor], batch: int = 6) -> Network:
    net = Functional(lambda net, x: net.last(x + way(net.conv(x))))
    net.conv, net.last = (nn.Conv2d(4, 4, 1) for _ in range(2))
    return trace(net, (torch.randn(batch, *SHAPE),))


def kinds(network: Network) -> list[str]:
    return [op.kind for op in network.ops]


def twice(x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    return x * noise + torch.tanh(x) * noise


def two_masks_alike(x: Tensor) -> Tensor:
    numbers = torch.rand_like(x)
    return x * (numbers < 0.3).float() + torch.tanh(x) * ((numbers < 0.3).float() * 2)


def view_of_a_read(x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    return (x + noise) * noise.view(-1, 4, 25).view(x.shape)


@pytest.mark.parametrize("way", [twice, two_masks_alike, view_of_a_read])
def test_a_draw_is_one_op(way: Callable[[Tensor], Tensor]) -> None:
    assert kinds(traced(way)).count("noise") == 1


def test_each_draw_has_its_own_numbers() -> None:
    network = traced(lambda x: x * torch.randn_like(x) * torch.randn_like(x))
    numbers = [op.attrs["op_id"] for op in network.ops if op.kind == "noise"]
    assert len(set(numbers)) == 2


def read_behind_a_write(noise: Tensor, x: Tensor) -> Tensor:
    double = noise * 2
    noise.mul_(3)
    return x + noise + double


def read_before_and_behind_a_write(noise: Tensor, x: Tensor) -> Tensor:
    y = x + noise
    noise.mul_(4)
    return y + noise


def read_by_a_call_before_a_write(noise: Tensor, x: Tensor) -> Tensor:
    double = noise.mul(2).view(-1, 100).view_as(x)
    y = x + double
    noise.mul_(3)
    return y + noise


def written_twice(noise: Tensor, x: Tensor) -> Tensor:
    y = x + noise.add_(noise)
    triple = noise.mul(1.5)
    noise.mul_(2)
    return y + triple + noise - noise


@pytest.mark.parametrize(
    "way",
    [
        read_behind_a_write,
        read_before_and_behind_a_write,
        read_by_a_call_before_a_write,
        written_twice,
    ],
)
def test_calls_and_writes_are_followed_in_their_order(
    way: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """All of these make five times the noise."""

    def forward(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        h = net.conv(x) * 0
        noise = torch.randn_like(h)
        first = noise.clone()
        return way(noise, h), first

    virtual = virtualize(Functional(forward, conv=nn.Conv2d(4, 4, 1)), torch.randn(8, *SHAPE))
    found, noise = virtual(torch.randn(8, *SHAPE))
    torch.testing.assert_close(found, 5 * noise)
    virtual.close()


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_what_one_mask_leaves_another_takes(share: float) -> None:
    """Each element is that of one branch."""

    def way(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        h = net.conv(x)
        numbers = torch.rand_like(h)
        kept = (numbers < share).float()
        return h * kept + (2 + h) * (numbers >= share).float(), h, kept

    virtual = virtualize(Functional(way, conv=nn.Conv2d(4, 4, 1)), torch.randn(8, *SHAPE))
    found, h, kept = virtual(torch.randn(8, *SHAPE))
    torch.testing.assert_close(found, torch.where(kept > 0, h, 2 + h))
    assert abs(kept.mean().item() - share) < 0.1
    virtual.close()


def test_a_map_is_not_viewed_as_another_type() -> None:
    assert kinds(traced(lambda x: x.view(torch.float32))) == ["conv2d", "view", "add", "conv2d"]
    with pytest.raises(UnsupportedOpError, match=r"view as torch.int32 \(use to\)"):
        traced(lambda x: x.view(torch.int32).float())


def test_distributions_are_drawn_from() -> None:
    """By torch.distributions, which broadcasts means and deviations."""

    def way(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        h = net.conv(x)
        normal = torch.distributions.Normal(h, functional.softplus(h), validate_args=False)
        return normal.rsample(), h

    virtual = virtualize(Functional(way, conv=nn.Conv2d(4, 4, 1)), torch.randn(BATCH, *SHAPE))
    found, h = virtual(torch.randn(BATCH, *SHAPE))
    noise = (found - h) / functional.softplus(h)
    assert abs(noise.mean().item()) < 0.07
    assert abs(noise.std().item() - 1) < 0.05
    virtual.close()
