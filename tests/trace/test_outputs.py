"""Outputs of the user's own classes are of these classes again, as in torch."""

import copy
from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.support.beside_torch import assert_close
from tvdnn.engine import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

SHAPE = (2, 4, 6, 5)


class Net(nn.Module):
    """Returns `way` of two maps."""

    def __init__(self, way: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 4, 1)
        self.way = way

    def forward(self, x: Tensor) -> Any:
        h = self.conv(x)
        return self.way(h, h.relu())


class Answers(Mapping[str, Any]):
    """A mapping that holds its items in an attribute, and a number beside them."""

    def __init__(self, scale: float, **items: Tensor) -> None:
        self.scale, self.items_by_name = scale, items

    def __getitem__(self, name: str) -> Tensor:
        return self.items_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_by_name)

    def __len__(self) -> int:
        return len(self.items_by_name)


class Slotted(Mapping[str, Tensor]):
    __slots__ = ("h",)

    def __init__(self, h: Tensor) -> None:
        self.h = h

    def __getitem__(self, name: str) -> Tensor:
        return {"h": self.h}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("h",))

    def __len__(self) -> int:
        return 1


class Output(OrderedDict[str, Any]):
    """A dict whose items are its attributes, too."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        super().__setattr__(name, value)


class Attributes(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class Pair(tuple[Tensor, Tensor]):
    """A tuple whose class takes its items one by one."""

    def __new__(cls, one: Tensor, other: Tensor) -> "Pair":
        pair = super().__new__(cls, (one, other))
        pair.name = "pair"  # type: ignore[attr-defined]
        return pair

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


class Several(list[Any]):
    pass


class Named(NamedTuple):
    one: Tensor
    other: Tensor


@dataclass
class Plain:
    one: Tensor
    others: list[Tensor]
    size: int = 2


@dataclass(frozen=True, slots=True)
class Frozen:
    one: Tensor
    inner: Plain


def defaults(h: Tensor, y: Tensor) -> Any:
    found: Any = defaultdict(list, h=h)
    found["all"].append(y)
    return found


def output(h: Tensor, y: Tensor) -> Output:
    found = Output()
    found["h"], found["y"] = h, y
    return found


RETURNED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a mapping": lambda h, y: Answers(0.5, h=h, y=y),
    "a mapping with slots": lambda h, y: Slotted(y),
    "a dict with attributes": output,
    "a dict with methods": lambda h, y: Attributes(h=h, inner=Attributes(y=y)),
    "a UserDict": lambda h, y: UserDict(h=h, y=y),
    "a defaultdict": defaults,
    "a tuple": Pair,
    "a list": lambda h, y: Several([h, y]),
    "a named tuple": Named,
    "a dataclass": lambda h, y: Plain(h, [y]),
    "a dataclass with slots": lambda h, y: Frozen(h, Plain(y, [h])),
    "inside a dict": lambda h, y: {"found": Answers(2.0, h=h), "y": y},
}


def leaves(value: Any) -> Iterator[Any]:
    """The contents of a returned object, with the types of their containers."""
    yield type(value)
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield name
            yield from leaves(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from leaves(each)
    held = {name: getattr(value, name) for name in getattr(type(value), "__dataclass_fields__", ())}
    held |= {} if isinstance(value, Tensor) else vars(value) if hasattr(value, "__dict__") else {}
    for name, each in held.items():
        yield name
        yield from leaves(each)
    if isinstance(value, (Tensor, int, float, str)):
        yield value


@pytest.mark.parametrize("way", RETURNED.values(), ids=RETURNED.keys())
def test_objects_of_other_classes_come_back_as_they_are(
    way: Callable[[Tensor, Tensor], Any],
) -> None:
    net, x = Net(way), torch.randn(SHAPE)
    exact = [*leaves(copy.deepcopy(net).double()(x.double()))]
    virtual = virtualize(net, x)
    for _ in range(2):
        found = [*leaves(virtual(x))]
        assert len(found) == len(exact)
        for mine, theirs in zip(found, exact, strict=True):
            if isinstance(theirs, Tensor):
                assert_close(mine, theirs, "output")
            else:
                assert mine == theirs


def test_an_attribute_and_an_item_are_one_tensor() -> None:
    net, x = Net(output), torch.randn(SHAPE)
    found = virtualize(net, x)(x)
    assert found.h is found["h"]
    found.h.square().sum().backward()
    mine = net.conv.weight.grad
    exact = copy.deepcopy(net).double()
    exact.zero_grad()
    exact(x.double()).h.square().sum().backward()
    assert mine is not None
    assert exact.conv.weight.grad is not None
    assert_close(mine, exact.conv.weight.grad, "gradient")


def test_what_no_copy_can_be_made_of_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedOpError, match="returns mappingproxy where"):
        trace(Net(lambda h, y: MappingProxyType({"h": h})), (torch.randn(SHAPE),))


def test_other_objects_inside_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedOpError, match="returns set where"):
        trace(Net(lambda h, y: Plain(h, {y})), (torch.randn(SHAPE),))  # type: ignore[arg-type]


def test_a_counter_is_one() -> None:
    net, x = Net(lambda h, y: (h, Counter("aab"))), torch.randn(SHAPE)
    assert virtualize(net, x)(x)[1] == Counter("aab")
