"""Questions of a forward to Python and torch about its maps: answered as eagerly, or refused."""

import builtins
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.support.beside_torch import assert_trains_as_torch
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace


class Net(nn.Module):
    """A layer whose map `way` reads."""

    def __init__(self, way: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, self.conv(x))


def on(asked: Callable[[Any], bool]) -> Callable[[Net, Tensor], Tensor]:
    """A way that takes one branch or the other by an answer about a map."""

    def way(net: Net, h: Tensor) -> Tensor:
        return functional.relu(h) if asked(h) else functional.hardswish(h)

    return way


def frozen(h: Tensor) -> Tensor:
    with torch.no_grad():
        return h + 1


def has(name: str) -> Callable[[Any], bool]:
    return lambda h: hasattr(h, name)


ASKED = {
    "isinstance": lambda h: isinstance(h, Tensor),
    "isinstance of one of two": lambda h: isinstance(h, (list, Tensor)),
    "isinstance of a union": lambda h: isinstance(h, Tensor | None),
    "isinstance of a parameter": lambda h: isinstance(h, nn.Parameter),
    "isinstance of a list": lambda h: isinstance(h, (list, tuple)),
    "isinstance of parts": lambda h: isinstance(h.chunk(2, 1), tuple),
    "is_tensor": torch.is_tensor,
    "torch.jit.isinstance": lambda h: torch.jit.isinstance(h, Tensor),
    "torch.jit.isinstance of maps": lambda h: torch.jit.isinstance([h, h], list[Tensor]),
    "torch.jit.isinstance of another list": lambda h: torch.jit.isinstance([h], list[int]),
    "as_tensor": lambda h: torch.as_tensor(h) is h,
    "as_tensor of a type": lambda h: torch.as_tensor(h, dtype=torch.float32).dim() == 4,
    "an attribute that tensors lack": has("items"),
    "a private attribute": has("_no_such_attribute"),
    "an attribute that tensors have": has("shape"),
    "grad": lambda h: h.grad is None,
    "grad_fn": lambda h: h.grad_fn is None,
    "grad_fn without gradients": lambda h: frozen(h).grad_fn is None,
    "the same, contiguous": lambda h: h.contiguous() is h,
    "the same, dropped by none": lambda h: functional.dropout(h, 0.5, training=False) is h,
    "the same, flattened over one dimension": lambda h: h.flatten(1, 1) is h,
    "the same, with its own sign": lambda h: +h is h,
    "another, cloned": lambda h: h.clone() is h,
    "another, viewed": lambda h: h.view(h.shape) is h,
    "another, expanded": lambda h: h.expand_as(h) is h,
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_maps_answer_as_tensors(asked: Callable[[Any], bool]) -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Net(on(asked)), torch.randn(2, 4, 6, 5))


def of_a_map(net: Net, h: Tensor) -> Tensor:
    """The layer in the checkpoint has gradients, because the checkpoint reads a map that has."""
    result: Tensor = checkpoint(lambda y: net.conv(y).relu(), h, use_reentrant=True)
    return result


def beside_the_map(net: Net, h: Tensor) -> Tensor:
    """The checkpoint reads no map with a gradient: torch gives its layer none."""
    result: Tensor = checkpoint(net.conv, h.detach(), use_reentrant=True)
    return h + result


def not_reentrant(net: Net, h: Tensor) -> Tensor:
    result: Tensor = checkpoint(lambda y: net.conv(y).relu(), h, use_reentrant=False)
    return result


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("way", [of_a_map, beside_the_map, not_reentrant])
def test_checkpoints_are_followed(way: Callable[[Net, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Net(way), torch.randn(2, 4, 6, 5))


class Doubled(torch.autograd.Function):
    """A ReLU whose gradient is twice torch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        return x.relu()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * 2, None


def by_a_function(net: Net, h: Tensor) -> Tensor:
    result: Tensor = Doubled.apply(h, 2.0)  # type: ignore[no-untyped-call]
    return result.relu()


def without_autocast(net: Net, h: Tensor) -> Tensor:
    with torch.autocast("cuda", enabled=False):
        return net.conv(h.float())


def with_autocast(net: Net, h: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.conv(h)


def with_autocast_of_its_device(net: Net, h: Tensor) -> Tensor:
    with torch.autocast(h.device.type, dtype=torch.bfloat16, enabled=False):
        return net.conv(h)


@torch.autocast("cpu", dtype=torch.bfloat16)
def decorated(net: Net, h: Tensor) -> Tensor:
    return net.conv(h)


HERE = "at tests/trace/test_patched_torch.py:"
REFUSED = [
    (by_a_function, f"Net: Doubled, an autograd Function with a backward of its own {HERE}"),
    (without_autocast, rf"Net: a region of torch.autocast.*\) {HERE}"),
    (with_autocast, rf"Net: a region of torch.autocast.*\) {HERE}"),
    (with_autocast_of_its_device, rf"Net: a region of torch.autocast.*\) {HERE}"),
    (decorated, rf"Net: a region of torch.autocast.*\) {HERE}"),
]


def exchanged() -> tuple[Any, ...]:
    """The functions that a trace exchanges and puts back."""
    regions = (torch.autocast.__init__, torch.autocast.__enter__)
    return builtins.isinstance, *regions, torch.autograd.Function.apply


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize(("way", "message"), REFUSED)
def test_what_no_proxy_sees_is_refused(way: Callable[[Net, Tensor], Tensor], message: str) -> None:
    before = exchanged()
    with pytest.raises(UnsupportedOpError, match=message) as error:
        trace(Net(way), (torch.randn(2, 4, 5, 5),))
    assert str(error.value).count(HERE) == 1
    assert before == exchanged()


def test_a_function_in_an_opaque_submodule_runs_as_it_is() -> None:
    net = nn.Sequential(nn.Conv2d(4, 4, 3), Net(by_a_function), nn.ReLU())
    ops = trace(net, (torch.randn(2, 4, 8, 8),), opaque=True).ops
    assert [op.kind for op in ops] == ["conv2d", "opaque", "relu"]


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (random.random, "random"),
        (lambda: torch.randint(4, (1,)).item(), "torch"),
        (np.random.rand, "numpy.random"),
    ],
)
def test_numbers_drawn_once_are_refused(draw: Callable[[], float], name: str) -> None:
    net = nn.Sequential(Net(lambda net, h: h * float(draw())))
    with pytest.raises(UnsupportedOpError, match=f"0: forward draws a number from {name}.*{HERE}"):
        trace(net, (torch.randn(2, 4, 5, 5),))


def test_a_random_number_has_no_value_while_tracing() -> None:
    net = nn.Sequential(Net(lambda net, h: h * 2 if torch.rand(1) < 0.5 else h))
    with pytest.raises(UnsupportedOpError, match=rf"0: bool\(\) reads a value of.*{HERE}"):
        trace(net, (torch.randn(2, 4, 5, 5),))


def test_threads_trace_one_after_the_other() -> None:
    """The exchanged functions are as before once the last trace has ended."""
    plain = builtins.isinstance

    def kinds(_: int) -> list[str]:
        traced = trace(nn.Sequential(nn.ReLU(), nn.Tanh()), (torch.empty(2, 3),))
        return [op.kind for op in traced.ops]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(kinds, range(40)))
    assert found == [kinds(0)] * 40
    assert builtins.isinstance is plain
