"""Terms of gradients add up in the traced network's order, whatever is fused."""

import copy

import torch
from torch import Tensor, nn

import tvdnn
from tests.support.exact import Functional, assert_steps_are_exact

SHAPE = (5, 3, 6, 6)


def norm(channels: int, *, tracks: bool = True) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=0.1, track_running_stats=tracks)


def read_between(net: nn.Module, x: Tensor) -> Tensor:
    """A convolution reads the map between its normalization and the sum that this is fused with."""
    y = net.conv(x)
    z = net.norm(y)
    return y + (z + net.inner(y))


def read_twice(net: nn.Module, x: Tensor) -> Tensor:
    y = net.conv(x)
    return y + (y + net.norm(y))


def used_thrice(net: nn.Module, x: Tensor) -> Tensor:
    """A layer whose first use would be fused with a sum behind the others.

    Its running statistics change in the order of the calls; its parameters' gradients have three
    terms.
    """
    y = net.conv(x)
    z = net.norm(y)
    return torch.tanh(net.norm(torch.tanh(net.norm(net.inner(y))))) + torch.sigmoid(y) + z


def test_terms_of_a_fused_normalization_have_their_place() -> None:
    for way in (read_between, read_twice):
        torch.manual_seed(1)
        layers = {"conv": nn.Conv2d(3, 8, 1), "inner": nn.Conv2d(8, 8, 1), "norm": norm(8)}
        assert_steps_are_exact(Functional(way, **layers), torch.randn(SHAPE))


def test_uses_of_a_shared_normalization_keep_their_order() -> None:
    for tracks in (True, False):
        torch.manual_seed(1)
        layers = {"conv": nn.Conv2d(3, 8, 1), "inner": nn.Conv2d(8, 8, 1)}
        net = Functional(used_thrice, norm=norm(8, tracks=tracks), **layers)
        assert_steps_are_exact(net, torch.randn(SHAPE))


def shared_in_a_block(net: nn.Module, x: Tensor) -> Tensor:
    """Dense concatenations whose first map is read between a normalization and its sum."""
    y = net.conv(x)
    both = torch.cat((y, net.inner(y)), 1)
    normed = net.wide(both)
    more = net.reduce(both) + torch.tanh(y)
    every = torch.cat((y, more), 1)
    return normed + every + both


def test_terms_in_ranges_have_their_place() -> None:
    torch.manual_seed(1)
    net = Functional(
        shared_in_a_block,
        conv=nn.Conv2d(3, 8, 1),
        inner=nn.Conv2d(8, 8, 1),
        reduce=nn.Conv2d(16, 8, 1),
        wide=norm(16),
    )
    assert_steps_are_exact(net, torch.randn(SHAPE))


def an_output_read_on(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The last ops read an output, which lies behind more ops of which fused ones stand."""
    y = x
    for conv, normalize in zip(net.convs, net.norms, strict=True):
        y = torch.relu(normalize(conv(y)))
    return y, torch.relu(net.norm(net.conv(y)) + y)


def test_the_term_of_an_output_is_the_last_whatever_is_fused() -> None:
    torch.manual_seed(1)
    layers = {"convs": nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(4)), "norm": norm(8)}
    layers |= {"norms": nn.ModuleList(norm(8) for _ in range(4)), "conv": nn.Conv2d(8, 8, 1)}
    net, x = Functional(an_output_read_on, **layers), torch.randn(5, 8, 6, 6)
    weights = torch.randn(2, *x.shape)
    found = []
    for policy in ("keep", "vdnn-all"):
        ours = tvdnn.virtualize(copy.deepcopy(net), x, policy=policy, dtype="bf16")
        sum((y * w).sum() for y, w in zip(ours(x), weights, strict=True)).backward()
        found.append({name: each.grad for name, each in ours.named_parameters()})
    assert all(torch.equal(grad, found[1][name]) for name, grad in found[0].items())
