"""The eager runner: the engine's bits, saved and untouched tensors, its cache, and threads."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from tests.support.layers import LAYERS, shifted
from tvdnn import nn, virtualize
from tvdnn.nn.one_op import one_op

# Layers that run torch's own kernels, or on shapes that an engine does not take.
ALONE = {
    *("conv reflect", "leaky relu, falling", "linear of a sequence"),
    *("layer norm", "layer norm of samples", "layer norm alone"),
}


def results(layer: torch.nn.Module, x: Tensor, dy: Tensor | None = None) -> list[Tensor]:
    """The result, all gradients, and the buffers after a call of the layer on a copy of `x`."""
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    tensors = [x, *layer.parameters()]
    grads = torch.autograd.grad(y, tensors, torch.ones_like(y) if dy is None else dy)
    return [y.detach(), *grads, *(buffer.clone() for buffer in layer.buffers())]


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", sorted(LAYERS.keys() - ALONE))
def test_a_layer_alone_has_the_bits_of_the_engine(
    name: str, dtype: str, device: torch.device, generator: torch.Generator
) -> None:
    make, shape = LAYERS[name]
    layer = make().to(device)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    x = torch.randn(shape, generator=generator, device=device).to(kind)
    net = virtualize(copy.deepcopy(layer), x, budget="64 MiB", policy="keep", dtype=dtype)
    dy = torch.randn(layer(x).shape, generator=generator, device=device).to(kind)
    layer.load_state_dict(net.state_dict())
    assert_same_bits(results(layer, x, dy), results(net, x, dy))


SAVED: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], list[tuple[int, ...]]]] = {
    "input and weight": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 5, 5), [(2, 3, 5, 5), (4, 3, 3, 3)]),
    "input": (lambda: nn.MaxPool2d(2), (2, 3, 4, 4), [(2, 3, 4, 4)]),
    "result": (nn.ReLU, (2, 3), [(2, 3)]),
    "nothing": (lambda: nn.AvgPool2d(2), (2, 3, 4, 4), []),
    "a seed, outside": (nn.Dropout, (2, 3), []),
    "statistics": (lambda: nn.BatchNorm1d(3), (5, 3), [(5, 3), (3, 3), (3,), (3,)]),
    "input and scale": (lambda: nn.LayerNorm(3), (5, 3), [(5, 3), (3,)]),
}


@pytest.mark.parametrize("name", SAVED)
def test_only_what_backward_reads_is_saved(name: str) -> None:
    make, shape, expected = SAVED[name]
    saved: list[tuple[int, ...]] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(tuple(x.shape))
        return x

    x = torch.randn(shape, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        make()(x)
    assert sorted(saved) == sorted(expected)


def test_weights_alone_save_no_weight() -> None:
    saved: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.shape), lambda x: x):
        nn.Conv2d(3, 4, 3)(torch.randn(2, 3, 5, 5))
    assert saved == [(2, 3, 5, 5)]


@pytest.mark.parametrize("name", ["conv", "relu", "silu", "batch norm", "dropout", "layer norm"])
def test_inputs_and_gradients_stay_as_they_are(name: str, device: torch.device) -> None:
    """An engine makes the gradient of an elementwise op's input in that of its output."""
    make, shape = {**LAYERS, "dropout": (nn.Dropout, (2, 5, 3, 7))}[name]
    x = torch.randn(shape, device=device, requires_grad=True)
    y = make().to(device)(x)
    dy = torch.randn(y.shape, device=device)
    given = x.detach().clone(), dy.clone()
    y.backward(dy)
    assert torch.equal(x, given[0])
    assert torch.equal(dy, given[1])


@pytest.mark.parametrize("name", ["conv", "linear", "batch norm", "group norm", "prelu"])
def test_backward_runs_again(name: str, device: torch.device) -> None:
    make, shape = LAYERS[name]
    layer, x = make().to(device), torch.randn(shape, device=device, requires_grad=True)
    y = layer(x).square().sum()
    tensors = [x, *layer.parameters()]
    first, second = (torch.autograd.grad(y, tensors, retain_graph=True) for _ in range(2))
    assert_same_bits([*first], [*second])


PARTS = ["conv", "conv depthwise, eights", "conv transposed", "linear", "batch norm", "group norm"]


@pytest.mark.parametrize("wanted", range(1, 8))
@pytest.mark.parametrize("name", [*PARTS, "layer norm of features", "prelu by channel"])
def test_every_choice_of_gradients(name: str, wanted: int, device: torch.device) -> None:
    """A gradient has the same bits whichever others are wanted, and the others are None."""
    make, shape = LAYERS[name]
    layer, x = shifted(make()).to(device), torch.randn(shape, device=device)
    expected = results(layer, x)
    tensors = [x, *layer.parameters()]
    chosen = [bool(wanted >> place & 1) for place in range(len(tensors))]
    for tensor, needs in zip(tensors, chosen, strict=True):
        tensor.requires_grad_(needs)
    y = layer(x)
    assert y.requires_grad == any(chosen)
    if any(chosen):
        y.backward(torch.ones_like(y))
    for tensor, needs, exact in zip(tensors, chosen, expected[1:], strict=False):
        assert (tensor.grad is not None) == needs
        assert not needs or torch.equal(tensor.grad, exact)


def test_without_gradients_nothing_is_kept(device: torch.device) -> None:
    layer, x = nn.Conv2d(3, 4, 3).to(device), torch.randn(2, 3, 5, 5, device=device)
    y = layer(x)
    with torch.no_grad():
        assert torch.equal(layer(x), y)
        assert layer(x).grad_fn is None


def test_an_op_is_expanded_once_for_a_shape() -> None:
    layer = nn.Conv2d(3, 4, 3, stride=(3, 2))
    layer(torch.randn(3, 3, 19, 23))
    before = one_op.cache_info()
    layer(torch.randn(3, 3, 19, 23))
    again = one_op.cache_info()
    assert (again.hits, again.misses) == (before.hits + 1, before.misses)
    layer(torch.randn(3, 3, 19, 29))
    assert one_op.cache_info().misses == before.misses + 1


def test_threads_share_what_is_expanded() -> None:
    torch.manual_seed(3)
    layers = [make() for make, _ in LAYERS.values()]
    inputs = [torch.randn(shape) for _, shape in LAYERS.values()]
    copies = copy.deepcopy(layers)
    expected = list(map(results, layers, inputs))
    one_op.cache_clear()

    def run(first: int) -> list[list[Tensor]]:
        layers, order = copy.deepcopy(copies), range(first, first + len(copies))
        found = {
            i % len(layers): results(layers[i % len(layers)], inputs[i % len(layers)])
            for i in order
        }
        return [found[i] for i in range(len(layers))]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(run, (0, 0, 20, 40)):
            for one, other in zip(found, expected, strict=True):
                assert_same_bits(one, other)
