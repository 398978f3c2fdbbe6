"""Calls of a virtualized network as of a torch module: by keyword, compiled, on no samples."""

import copy

import pytest
import torch
from torch import Tensor, nn

import tvdnn
from tvdnn.errors import InputError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(64, 5)

    def forward(self, image: Tensor, other: Tensor | None = None, scale: float = 1.0) -> Tensor:
        y = self.fc(torch.relu(self.conv(image)).flatten(1)) * scale
        return y if other is None else y + other


class Outer(nn.Module):
    """Layers of torch around a network."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x * 2)) + 1


def twins() -> tuple[nn.Module, nn.Module, Tensor]:
    net, x = Net(), torch.randn(2, 3, 6, 6)
    return tvdnn.virtualize(copy.deepcopy(net), x), net, x


def test_tensors_are_taken_by_keyword() -> None:
    made, net, x = twins()
    other = torch.randn(2, 5)
    for found, expected in [
        (made(image=x), net(x)),
        (made(x, other=None, scale=1.0), net(x)),
        (made(x, None), net(x)),
        (made(x, scale=float("1.0")), net(x)),
        (made(other=other, image=x), net(x, other)),
    ]:
        torch.testing.assert_close(found, expected)


def test_other_arguments_are_refused_by_name() -> None:
    made, _, x = twins()
    with pytest.raises(InputError, match=r"argument scale is 2.0; .* takes tensors"):
        made(x, torch.randn(2, 5), scale=2.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'picture'"):
        made(x, picture=x)


def test_a_batch_of_no_samples_gives_what_torch_gives() -> None:
    made, net, x = twins()
    for each in (made, net):
        each(x[:0]).sum().backward()
    assert made(x[:0]).shape == (0, 5)
    assert torch.equal(made.conv.weight.grad, net.conv.weight.grad)
    torch.testing.assert_close(made(x), net(x))


def test_an_example_of_no_samples_is_refused_as_such() -> None:
    with pytest.raises(InputError, match="the batch has no samples"):
        tvdnn.virtualize(Net(), torch.empty(0, 3, 6, 6))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_calls_break_the_graph(backend: str) -> None:
    torch.compiler.reset()
    made, net, x = twins()
    for compiled, plain in ((Outer(made), Outer(net)), (made, net)):
        found, expected = torch.compile(compiled, backend=backend)(x), plain(x)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        expected.sum().backward()
    torch.testing.assert_close(made.fc.weight.grad, net.fc.weight.grad)
