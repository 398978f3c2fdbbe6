"""Values that a forward reads outside its modules are followed at every call, beside torch."""

import copy
import os
import random
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support import outside_names
from tests.support.beside_torch import assert_close
from tvdnn.engine import Trainer, virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.guards.module_state import TraceState
from tvdnn.trace.trace import trace

SHAPE = (2, 4, 6, 5)
SCALE = 0.5
ACT: Callable[[Tensor], Tensor] = functional.relu
SIZES = [1, 2]
TABLE: dict[str, Any] = {"scale": 0.5, "inner": {"scales": [1.0, 2.0]}}
SPACE = SimpleNamespace(scale=0.5)
CALLS = 0
SEEN: list[int] = []
COLLECTED: list[Tensor] = []
MET: set[object] = set()
CACHE: dict[int, Tensor] = {}
DRAWS = random.Random(0)
NUMBERS = np.random.default_rng(0)


class Settings:
    """Settings of a network, one of which is its class's."""

    scale: ClassVar[float] = 0.5
    calls: ClassVar[int] = 0

    def __init__(self) -> None:
        self.shift = 0.5


SETTINGS = Settings()


class Net(nn.Module):
    """A layer whose map `way` reads."""

    factor = 1.0

    def __init__(self, way: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 4, 1)
        self.settings = Settings()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, self.conv(x))


def scaled(net: Net, h: Tensor) -> Tensor:
    return h * SCALE


def enclosing() -> tuple[Callable[[Net, Tensor], Tensor], Callable[[float], None]]:
    scale = 0.5

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    return lambda net, h: h * scale, change


ENCLOSED, CHANGE_ENCLOSED = enclosing()
Change = Callable[[float], object]
READS: dict[str, tuple[Callable[[Net, Tensor], Tensor], Change]] = {
    "a global": (scaled, lambda x: globals().update(SCALE=x)),
    "a function": (
        lambda net, h: ACT(h),
        lambda x: globals().update(ACT=functional.silu if x > 1 else functional.relu),
    ),
    "an item of a list": (lambda net, h: h * SIZES[1], lambda x: SIZES.__setitem__(1, int(x))),
    "a list": (lambda net, h: h * SIZES[-1], lambda x: globals().update(SIZES=[1, 2, x])),
    "an item of a dict": (lambda net, h: h * TABLE["scale"], lambda x: TABLE.update(scale=x)),
    "an item deep in a dict": (
        lambda net, h: h * TABLE["inner"]["scales"][0],
        lambda x: TABLE["inner"]["scales"].__setitem__(0, x),
    ),
    "a namespace": (lambda net, h: h * SPACE.scale, lambda x: setattr(SPACE, "scale", x)),
    "a class": (lambda net, h: h * Settings.scale, lambda x: setattr(Settings, "scale", x)),
    "an object": (lambda net, h: h * SETTINGS.shift, lambda x: setattr(SETTINGS, "shift", x)),
    "an object's class": (
        lambda net, h: h * SETTINGS.scale,
        lambda x: setattr(SETTINGS, "scale", x),
    ),
    "an attribute of the network's class": (
        lambda net, h: h * net.factor,
        lambda x: setattr(Net, "factor", x),
    ),
    "a file": (
        lambda net, h: h * outside_names.FACTOR,
        lambda x: setattr(outside_names, "FACTOR", x),
    ),
    "a function of a file": (
        lambda net, h: outside_names.scaled(h),
        lambda x: setattr(outside_names, "FACTOR", x),
    ),
    "a variable of a function": (ENCLOSED, CHANGE_ENCLOSED),
    "the environment": (
        lambda net, h: h * float(os.environ.get("TVDNN_TEST_SCALE", "0.5")),
        lambda x: os.environ.update(TVDNN_TEST_SCALE=str(x)),
    ),
    "a tensor's number": (
        lambda net, h: h * outside_names.NUMBER.item(),
        lambda x: outside_names.NUMBER.fill_(x),
    ),
}


@pytest.fixture(autouse=True)
def _names_as_they_were() -> Iterator[None]:
    names = ("SCALE", "ACT", "CALLS")
    before = {name: globals()[name] for name in names}
    yield
    globals().update(before, SIZES=[1, 2])
    TABLE.update(scale=0.5, inner={"scales": [1.0, 2.0]})
    SPACE.scale, SETTINGS.shift, Settings.scale, Net.factor = 0.5, 0.5, 0.5, 1.0
    SETTINGS.__dict__.pop("scale", None)
    outside_names.FACTOR = 0.5
    outside_names.NUMBER.fill_(0.5)
    os.environ.pop("TVDNN_TEST_SCALE", None)
    CHANGE_ENCLOSED(0.5)


@pytest.mark.parametrize(("way", "change"), READS.values(), ids=READS.keys())
def test_what_has_changed_is_read_anew(
    way: Callable[[Net, Tensor], Tensor], change: Change
) -> None:
    net, x = Net(way), torch.randn(SHAPE)
    exact = copy.deepcopy(net).double()
    virtual = virtualize(net, x)
    first = exact(x.double()).detach()
    assert_close(virtual(x), first, "before")
    change(3.0)
    now = exact(x.double()).detach()
    assert not torch.equal(first, now)
    assert_close(virtual(x), now, "after")


def test_an_attribute_of_an_object_that_a_module_holds_is_read_anew() -> None:
    net, x = Net(lambda net, h: h * net.settings.shift), torch.randn(SHAPE)
    virtual = virtualize(net, x)
    net.settings.shift = 3.0
    assert_close(virtual(x), copy.deepcopy(net).double()(x.double()), "after")


def test_a_trainer_reads_them_anew() -> None:
    net, x, y = Net(scaled), torch.randn(SHAPE), torch.randn(SHAPE)
    trainer = Trainer(net, x, loss=nn.MSELoss())
    globals()["SCALE"] = 3.0
    exact = copy.deepcopy(net).double()
    expected = functional.mse_loss(exact(x.double()), y.double()).detach()
    assert_close(trainer.step(x, y), expected, "loss")


def test_lists_that_are_replaced_by_equal_ones_are_followed() -> None:
    net = Net(lambda net, h: h * SIZES[1])
    net.sizes = [1, 2]  # type: ignore[assignment]
    state = TraceState(net)
    first = state.now()
    globals()["SIZES"] = [1, 2]
    net.sizes = [1, 2]  # type: ignore[assignment]
    assert state.now() == first
    SIZES.append(3)
    second = state.now()
    net.sizes.append(3)  # type: ignore[operator]
    assert len({first, second, state.now()}) == 3


def test_a_name_that_only_other_functions_read_is_none_of_the_state() -> None:
    state = TraceState(Net(scaled))
    first = state.now()
    globals()["CALLS"] = 7
    SEEN.append(1)
    assert state.now() == first
    globals()["SCALE"] = 0.75
    assert state.now() != first
    globals()["SCALE"] = 0.5
    assert state.now() == first
    SEEN.clear()


def counting(net: Net, h: Tensor) -> Tensor:
    global CALLS
    CALLS += 1
    return h * CALLS


def counting_in_a_class(net: Net, h: Tensor) -> Tensor:
    Settings.calls += 1
    return h


def noting(net: Net, h: Tensor) -> Tensor:
    SEEN.append(h.shape[0])
    return h


def counting_in_an_object(net: Net, h: Tensor) -> Tensor:
    net.settings.shift += 1
    return h


def counter() -> Callable[[Net, Tensor], Tensor]:
    calls = 0

    def way(net: Net, h: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return h * calls

    return way


def drawn(net: Net, h: Tensor) -> Tensor:
    return h * DRAWS.random()


def collecting(net: Net, h: Tensor) -> Tensor:
    COLLECTED.append(net.conv.weight)
    return h * len(COLLECTED)


def enclosing(function: Callable[[Tensor], Tensor]) -> Callable[[Net, Tensor], Tensor]:
    return lambda net, h: function(h)


def of_a_set(h: Tensor) -> Tensor:
    MET.add(object())
    return h * len(MET)


HERE = r"at \S*test_outside.py:\d+"
CHANGING: list[tuple[Callable[[Net, Tensor], Tensor], str]] = [
    (counting, rf"Net: forward changes the global \S*CALLS, which a step would not {HERE}"),
    (counting_in_a_class, rf"changes the attribute Settings.calls, .* {HERE}"),
    (noting, rf"changes the global \S*SEEN, .* {HERE}"),
    (counting_in_an_object, rf"changes the attribute Settings.shift, .* {HERE}"),
    (counter(), rf"changes the variable counter.<locals>.way.calls, .* {HERE}"),
    (drawn, rf"changes the global \S*DRAWS, .* {HERE}"),
    (lambda net, h: h * NUMBERS.random(), r"changes the global \S*NUMBERS"),
    (enclosing(of_a_set), rf"changes the global \S*MET, .* {HERE}"),
    (collecting, rf"changes the global \S*COLLECTED, .* {HERE}"),
]


@pytest.mark.parametrize(("way", "message"), CHANGING)
def test_what_forward_changes_is_refused_by_name(
    way: Callable[[Net, Tensor], Tensor], message: str
) -> None:
    net = Net(way)
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.randn(SHAPE),))
    assert (CALLS, Settings.calls, SEEN, net.settings.shift) == (0, 0, [], 0.5)


def test_a_cache_of_tensors_is_as_it_was() -> None:
    def way(net: Net, h: Tensor) -> Tensor:
        size = h.shape[1]
        if size not in CACHE:
            CACHE[size] = torch.ones(size, 1, device=h.device)
        return functional.conv2d(h, net.conv.weight * CACHE[size][:, :, None, None])

    net, x = Net(way), torch.randn(SHAPE)
    virtual = virtualize(net, x)
    assert not CACHE
    assert_close(virtual(x), net.double()(x.double()), "output")
    CACHE.clear()


def test_the_grad_mode_is_as_it_is_where_nothing_trains() -> None:
    net = Net(lambda net, h: h if torch.is_grad_enabled() else -h).requires_grad_(False)
    x = torch.randn(SHAPE)
    virtual, exact = virtualize(net, x), copy.deepcopy(net).double()
    assert_close(virtual(x), exact(x.double()), "with gradients")
    with torch.no_grad():
        assert_close(virtual(x), exact(x.double()), "without")
    assert_close(virtual(x), exact(x.double()), "with gradients again")


class Scaled(nn.Module):
    """A layer times a number that others may change."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(2, 2, 1), 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) * self.scale


def test_a_change_before_each_of_many_calls_is_told_once() -> None:
    net, x = Scaled(), torch.randn(1, 2, 3, 3)
    model = virtualize(net, x)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(1, 12):
            net.scale = float(step)
            model(x)
    assert sum("planned anew in 8 calls" in str(each.message) for each in told) == 1


def test_changes_with_calls_between_them_are_not_told() -> None:
    net, x = Scaled(), torch.randn(1, 2, 3, 3)
    model = virtualize(net, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(1, 12):
            net.scale = float(step)
            for _ in range(5):
                model(x)
