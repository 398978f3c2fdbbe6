"""Questions of a forward about its maps other than `isinstance`, beside torch's answers."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from tests.support.beside_torch import assert_trains_as_torch
from tvdnn.engine import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace


class Net(nn.Module):
    """A layer whose map `way` reads."""

    def __init__(self, way: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.register_buffer("scale", torch.rand(4, 1, 1) + 0.5)
        self.count = 0.5
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, self.conv(x))


def matched(h: Any) -> bool:
    match h:
        case Tensor(shape=(2, 4, 6, 5)):
            return True
        case _:
            return False


@functools.singledispatch
def is_tensor(h: object) -> bool:
    return False


@is_tensor.register
def _(h: Tensor) -> bool:
    return True


class Kinds:
    """A class whose method, named by the module's, asks for a type."""

    @staticmethod
    def table(h: Tensor) -> bool:
        return {Tensor: True}.get(type(h), False)


def tagged(h: Any) -> bool:
    h.tag = "h"
    return getattr(h.add_(1), "tag", None) == "h"


ASKED: dict[str, Callable[[Any], Any]] = {
    "match": matched,
    "singledispatch": is_tensor,
    "type is": lambda h: type(h) is Tensor,
    "type in": lambda h: type(h) in (Tensor, nn.Parameter),
    "type in a table": Kinds.table,
    "type by a partial": functools.partial(Kinds.table),
    "the name of a type": lambda h: type(h).__name__ == "Tensor",
    "a class of types": lambda h: isinstance(type(h), type) and issubclass(type(h), Tensor),
    "__class__": lambda h: h.__class__ is Tensor,
    "callable": lambda h: not callable(h),
    "keys": lambda h: hasattr(h, "keys"),
    "value": lambda h: hasattr(h, "value"),
    "node": lambda h: not hasattr(h, "node") and getattr(h, "node", None) is None,
    "tracer": lambda h: not hasattr(h, "tracer") and not hasattr(h.relu(), "tracer"),
    "names of proxies": lambda h: (
        not any(map(functools.partial(hasattr, h), ("known", "_call", "_as")))
    ),
    "node set": lambda h: setattr(h, "node", 1) is None and getattr(h, "node", 0) == 1,
    "in place": lambda h: h.relu_() is h,
    "in place by a function": lambda h: functional.relu(h, inplace=True) is h,
    "in place by an operator": lambda h: h.__iadd__(1) is h,
    "an attribute of the map": tagged,
    "None": lambda h: h == None,  # noqa: E711
    "a text": lambda h: h != "text",
    "device": lambda h: h.device == torch.device("cpu") and h.is_cpu and not h.is_meta,
    "a number of a device": lambda h: h.get_device() == -1 and not h.is_cuda,
    "floating point": torch.is_floating_point,
    "size": lambda h: h.is_same_size(h),
    "_base": lambda h: h._base is None,
    "a part by its name": lambda h: h.max(1).values.shape == (2, 6, 5) == h.min(1).indices.shape,
    "a part by a name that is no field": lambda h: not hasattr(h.max(1), "known"),
    "a gradient of a part": lambda h: h.max(1).values.requires_grad,
    "a text of sizes": lambda h: f"{h.shape}" == "torch.Size([2, 4, 6, 5])",
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_maps_answer_as_tensors(asked: Callable[[Any], bool]) -> None:
    def way(net: Net, h: Tensor) -> Tensor:
        return functional.relu(h) if asked(h) else functional.hardswish(h)

    torch.manual_seed(0)
    assert_trains_as_torch(Net(way), torch.randn(2, 4, 6, 5))


def test_the_types_of_a_file_are_its_own_again() -> None:
    names = globals()
    trace(Net(lambda net, h: h if type(h) is Tensor else -h), (torch.randn(2, 4, 5, 5),))
    assert "type" not in names


FROM_MODULE: dict[str, Callable[[Net, Tensor], Any]] = {
    "device": lambda net, h: net.conv.weight.device == h.device,
    "cpu": lambda net, h: net.scale.is_cpu and not net.scale.is_meta,
    "moved": lambda net, h: net.scale.to(h.device) is net.scale,
    "a type": lambda net, h: type(net.conv.weight) is nn.Parameter,
    "mixed with what is made": lambda net, h: (net.scale + torch.ones(4, 1, 1)).shape[0] == 4,
}


@pytest.mark.parametrize("asked", FROM_MODULE.values(), ids=FROM_MODULE.keys())
def test_tensors_of_the_module_lie_where_it_lies(asked: Callable[[Net, Tensor], bool]) -> None:
    def way(net: Net, h: Tensor) -> Tensor:
        return functional.relu(h) if asked(net, h) else functional.hardswish(h)

    torch.manual_seed(0)
    assert_trains_as_torch(Net(way), torch.randn(2, 4, 6, 5))


def layer_made_in_forward(net: Net, h: Tensor) -> Tensor:
    result: Tensor = nn.Softmax(dim=1)(nn.ReLU()(h))
    return result


def number_of_numpy(net: Net, h: Tensor) -> Tensor:
    return h * np.float32(2)


def deep_copy_of_a_leaf(net: Net, h: Tensor) -> Tensor:
    return h + copy.deepcopy(h.detach())


def deep_copy_that_fails(net: Net, h: Tensor) -> Tensor:
    try:
        copy.deepcopy(h)
    except RuntimeError:
        h = h * 3
    return h


@pytest.mark.parametrize(
    "way", [layer_made_in_forward, number_of_numpy, deep_copy_of_a_leaf, deep_copy_that_fails]
)
def test_what_was_refused_or_wrong_trains(way: Callable[[Net, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Net(way), torch.randn(2, 4, 6, 5))


def swallowed(read: Callable[[Net, Tensor], Any]) -> Callable[[Net, Tensor], Tensor]:
    """A forward that takes another way where `read` raises."""

    def way(net: Net, h: Tensor) -> Tensor:
        try:
            read(net, h)
        except Exception:  # noqa: BLE001
            return h.tanh()
        return h.relu()

    return way


def packed(net: Net, h: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return net.conv(h)


def data_set(net: Net, h: Tensor) -> Tensor:
    net.conv.weight.data = net.conv.weight.data * 2
    return net.conv(h)


def layer_with_weights(net: Net, h: Tensor) -> Tensor:
    layer: Any = UNREGISTERED[0]
    result: Tensor = layer(h)
    return result


UNREGISTERED = [nn.Conv2d(4, 4, 1)]
HERE = "at tests/trace/test_asked_of_maps.py:"
REFUSED = [
    (
        swallowed(lambda net, h: net.scale.sum().item()),
        "item reads a value of a tensor that forward computes",
    ),
    (swallowed(lambda net, h: bool(net.scale.sum() > 0)), r"bool\(\) reads a value of a tensor"),
    (swallowed(lambda net, h: f"{net.scale.sum():.2f}"), r"format\(\) reads a value of a tensor"),
    (swallowed(lambda net, h: f"{h.mean((1, 2, 3)).mean():.2f}"), "mean as a text"),
    (swallowed(lambda net, h: torch.nonzero(h).shape), "nonzero"),
    (swallowed(lambda net, h: h.grad_fn.name()), "grad_fn"),
    (swallowed(lambda net, h: type(h.grad_fn).__name__), "grad_fn"),
    (swallowed(lambda net, h: copy.copy(h)), "copy.copy"),
    (swallowed(lambda net, h: UNREGISTERED[0](h)), "Conv2d, whose tensors are not the network's"),
    (layer_with_weights, f"Net: Conv2d, whose tensors are not the network's.*{HERE}"),
    (lambda net, h: h * net.scale.mean().item(), f"Net: item reads a value .*{HERE}"),
    (packed, f"Net: a region of saved_tensors_hooks.*{HERE}"),
    (data_set, f"Net: setting .data changes conv.weight of the module.*{HERE}"),
]


@pytest.mark.parametrize(("way", "message"), REFUSED)
def test_what_is_not_known_is_refused(way: Callable[[Net, Tensor], Tensor], message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Net(way), (torch.randn(2, 4, 5, 5),))


@pytest.mark.parametrize("compiled", [True, False])
def test_compiled_modules_are_refused(compiled: bool) -> None:
    layer: Any = nn.Conv2d(4, 4, 1)
    made = torch.compile(layer, backend="eager") if compiled else torch.jit.trace(layer, X)
    message = (
        "0: OptimizedModule that torch.compile" if compiled else "0: .*a module of TorchScript"
    )
    with pytest.raises(UnsupportedOpError, match=message):
        trace(nn.Sequential(made, nn.ReLU()), (X,))


X = torch.ones(2, 4, 5, 5)


@pytest.mark.parametrize(
    "way",
    [
        lambda x: functional.dropout(x, 0.5, training=False),
        lambda x: functional.dropout2d(x, 0.5, training=False),
        lambda x: functional.dropout(x, 0.0),
        lambda x: x.contiguous(),
        lambda x: x.flatten(3),
        lambda x: x.view(x.shape),
    ],
)
def test_what_gives_an_input_back_is_a_leaf_as_the_input_is(
    way: Callable[[Tensor], Tensor],
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = way(x)
            return self.conv(y) * (2 if y.is_leaf else 3)

    torch.manual_seed(0)
    net, x = Net(), torch.randn(2, 3, 4, 4, requires_grad=True)
    torch.testing.assert_close(virtualize(net, x)(x), net(x))


def test_a_deep_copy_of_an_input_with_a_gradient_is_refused() -> None:
    """Torch makes a leaf that requires a gradient, which no step would give it."""

    class Copying(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return copy.deepcopy(x) * 2

    x = torch.randn(2, 4, 6, 5, requires_grad=True)
    assert Copying()(x).requires_grad
    with pytest.raises(UnsupportedOpError, match=r"copy\.deepcopy at .*test_asked_of_maps\.py:\d+"):
        virtualize(Copying(), (x,), policy="keep")
    assert not virtualize(Copying(), (x.detach(),), policy="keep")(x.detach()).requires_grad
