"""Random numbers that a forward draws for each sample, and what it computes of them alone.

    z = mean + torch.randn_like(std) * std
    noise = torch.randn(len(x), 1, *x.shape[2:], device=x.device)
    kept = (torch.rand_like(x) < 0.9) / 0.9

Torch draws them into tensors that come from no map. Where an op reads one, the recorded calls
behind it are run again on proxies: draws become maps of random numbers, and other calls ops.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import dropwhile
from math import isclose
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.overrides import is_tensor_method_or_property

from ...functional import random_map
from ...ops.traced_op import given_settings
from .drawn_masks import TYPES, Drawn, Mask, State, is_plain, next_state
from .functionalize import storage_of
from .recorded_call import RecordedCall

UNIFORM: Final = ("rand", "rand_like")
NORMAL: Final = ("randn", "randn_like")
# By function, the places and names of two numbers, and their defaults.
NUMBERS: Final[Mapping[str, tuple[int, tuple[str, str], tuple[float, float]]]] = {
    "normal": (0, ("mean", "std"), (0.0, 1.0)),
    "normal_": (1, ("mean", "std"), (0.0, 1.0)),
    "uniform_": (1, ("from", "to"), (0.0, 1.0)),
    "exponential_": (1, ("lambd", ""), (1.0, 0.0)),
}
FORM: Final = ("size", "dtype", "device", "layout", "pin_memory", "generator", "out")  # settings
UNFOLLOWED: Final = ("__get__", "__set__", "__setitem__")
OPERATORS: Final = {"__rdiv__": "__rtruediv__", "__div__": "__truediv__"}
SAME: Final = 1e-9  # difference of shares that are one but for rounding
Settings = Mapping[str, Any]  # of random_map, behind its size


class NoDrawnMapError(Exception):
    """Why a tensor of random numbers is no map: a sentence about `they`."""


class DrawnMaps:
    """The random numbers that the ops of one traced forward read.

    `nodes` are by tensor and number of writes to its storage. `reads` are the storages of what ops
    have read, with these numbers and the nodes.
    """

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], fx.Node] = {}
        self.reads: list[tuple[int | None, int, fx.Node]] = []
        # By recorded call, the settings, whether ones stand for the lower numbers, and the node.
        self._draws: dict[int, tuple[Settings, bool, fx.Node]] = {}

    def draws(self, call: RecordedCall) -> bool:
        """Whether an op draws the numbers of this call."""
        return id(call) in self._draws

    def are_views_stale(self, writes: Mapping[int | None, int]) -> bool:
        """Whether a tensor was written behind an op that took a view of it."""
        return any(
            writes[place] != count and any(user.meta.get("parent") is node for user in node.users)
            for place, count, node in self.reads
        )

    def drawn(
        self, call: RecordedCall, settings: Settings, beside: fx.Proxy, *, low: bool = True
    ) -> fx.Node:
        """The numbers of a call that draws. Two forms of them would be two draws.

        Of a mask, ones stand for the lower numbers or for the higher ones.
        """
        known = self._draws.get(id(call))
        if known is None:
            (made,) = call.made
            node: fx.Node = _beside(beside, tuple(made.shape), settings).node
            node.meta["drawn"] = True
            self._draws[id(call)] = settings, low, node
            return node
        if known[:2] != (settings, low):
            raise NoDrawnMapError("ops read them in two forms")
        return known[2]

    def mask(self, mask: Mask, beside: fx.Proxy) -> Any:
        """The ones of a mask. Those of the numbers that another mask leaves are one less that."""
        settings: Settings = {"distribution": "bernoulli", "p": mask.keep}
        form, low, node = self._draws.get(id(mask.draw), ({}, mask.low, None))
        proxy_of: Any = beside.tracer.proxy
        is_other = "p" in form and low is not mask.low
        if is_other and isclose(form["p"], 1 - mask.keep, abs_tol=SAME):
            return 1 - proxy_of(node)
        return proxy_of(self.drawn(mask.draw, settings, beside, low=mask.low))


class Replay:
    """Runs recorded calls again, the first first, on the nodes of random numbers.

    `beside` is a map of the batch, `calls` all that were recorded. Raises NoDrawnMapError where a
    call on random numbers, or what it makes, is no op.
    """

    def __init__(
        self,
        maps: DrawnMaps,
        beside: fx.Proxy,
        calls: Sequence[RecordedCall],
    ) -> None:
        self._maps, self._beside, self._calls = maps, beside, calls
        self._states: dict[int, State | fx.Node] = {}  # by tensor
        self._aliases: dict[int | None, set[int]] = {}  # by storage
        self._writes = Counter[int | None]()  # by storage, so far
        self.tensors: list[Tensor] = []  # that hold random numbers

    def run(self, call: RecordedCall) -> None:
        """Note what a call makes of random numbers, or where it draws some."""
        self._writes.update(set(map(storage_of, call.written)))
        made = [each for each in call.made if isinstance(each, Tensor)]
        known = [self._maps.nodes.get(self._key(each)) for each in made]
        found = known[0] if any(known) else self._result(call)
        self._check_views(call, made, draws=found is not None)
        if found is None:
            return
        if len(made) != 1 or call.formed:
            raise NoDrawnMapError(f"{call.name} is called on them")
        (target,) = made
        self._states[id(target)] = found
        self.tensors.append(target)

    def _check_views(self, call: RecordedCall, made: Sequence[Tensor], *, draws: bool) -> None:
        """Check that a write changes one of the tensors seen so far, where any holds numbers."""
        for each in (*call.written, *made):
            self._aliases.setdefault(storage_of(each), set()).add(id(each))
        for place in set(map(storage_of, call.written)):
            aliases = self._aliases[place]
            if len(aliases) > 1 and (draws or aliases & self._states.keys()):
                raise NoDrawnMapError("they are written where a view shows them")

    def _is_written_since(self, call: RecordedCall, tensors: Sequence[Tensor]) -> bool:
        """Whether a later call has written one of the tensors."""
        places = set(map(storage_of, tensors))
        later = dropwhile(lambda each: each is not call, self._calls)
        return any(storage_of(x) in places for each in [*later][1:] for x in each.written)

    def read(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor that an op reads."""
        node, place = self.node_of(tensor), storage_of(tensor)
        self._maps.reads.append((place, self._writes[place], node))
        return node

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor as the calls so far have left it."""
        found = self._states.get(id(tensor))
        if found is None:
            raise NoDrawnMapError("they are written where a view shows them")
        node = found if isinstance(found, fx.Node) else self._drawn(found, tensor)
        node.meta["drawn"] = True
        self._states[id(tensor)] = self._maps.nodes[self._key(tensor)] = node
        return node

    def _key(self, tensor: Tensor) -> tuple[int, int]:
        return id(tensor), self._writes[storage_of(tensor)]

    def _result(self, call: RecordedCall) -> State | fx.Node:
        """What a call makes of random numbers: a form of a draw, or a node. None of others."""
        args, kwargs = call.arguments
        given = [each for each in call.given if isinstance(each, Tensor)]
        if call.draws:
            return self._draw(call, args, kwargs)
        if not any(id(each) in self._states for each in given):
            return None
        state = self._states.get(id(given[0]))
        if len(given) == 1 and isinstance(state, (Drawn, Mask)) and given[0].dtype in TYPES:
            found = next_state(state, call, args, kwargs)
            if found is not None:
                return found
        return self._applied(call)

    def _draw(
        self, call: RecordedCall, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> State | fx.Node:
        """The numbers that a call draws. Those in [0, 1) may still become a mask."""
        if not is_plain(kwargs) or kwargs.get("requires_grad"):
            raise NoDrawnMapError(
                f"{call.name} draws them by a generator of its own, with out= or a gradient"
            )
        found = Drawn(call) if call.name in UNIFORM else next_state(None, call, args, kwargs)
        if found is not None:
            return found
        settings = _settings_of_draw(call.name, args, kwargs)
        if settings is None:
            raise NoDrawnMapError(f"{call.name} draws them")
        return self._maps.drawn(call, settings, self._beside)

    def _drawn(self, state: State, tensor: Tensor) -> fx.Node:
        """The node of numbers in one of the forms that a mask takes."""
        assert state is not None
        found: Any
        if isinstance(state, Mask):
            if not 0 <= state.keep <= 1:
                raise NoDrawnMapError(f"{state.keep} of them are kept")
            found = self._maps.mask(state, self._beside)
            found = found * state.value if state.value != 1 else found
        else:
            uniform = self._maps.drawn(state.draw, {"distribution": "uniform"}, self._beside)
            found = self._proxy(uniform)
            found = found + state.shift if state.shift else found
        if tuple(found.shape) != tuple(tensor.shape):
            found = found.reshape(tuple(tensor.shape))
        node: fx.Node = found.node
        return node

    def _applied(self, call: RecordedCall) -> fx.Node:
        """The node of a call on random numbers, beside other tensors as they are."""
        others = [each for each in call.given if isinstance(each, Tensor)]
        others = [each for each in others if id(each) not in self._states]
        if self._is_written_since(call, others):
            raise NoDrawnMapError(f"{call.name} reads what is written behind it")
        leaves = [self._placed(each) for each in call.given]
        try:
            with torch.set_grad_enabled(call.graded):
                result = _called(call, *call.arguments_of(leaves))
        except (AttributeError, TypeError) as error:  # a proxy cannot take the tensor's place
            raise NoDrawnMapError(f"{call.name} is called on them") from error
        is_number = all(each.dtype.is_floating_point for each in call.made)
        if not isinstance(result, fx.Proxy) or not is_number:
            raise NoDrawnMapError(f"{call.name} is called on them")
        return result.node

    def _placed(self, each: Any) -> Any:
        is_drawn = isinstance(each, Tensor) and id(each) in self._states
        return self._proxy(self.node_of(each)) if is_drawn else each

    def _proxy(self, node: fx.Node) -> fx.Proxy:
        proxy: fx.Proxy = self._beside.tracer.proxy(node)
        return proxy


def _beside(x: Any, size: tuple[int, ...], settings: Settings) -> Any:
    if size[:1] != tuple(x.shape[:1]):
        raise NoDrawnMapError("they are not drawn for each sample")
    return random_map(x, size, **settings)


def _called(call: RecordedCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a call on proxies; of one in place that of its function out of place."""
    function, name = call.function, str(getattr(call.function, "__name__", ""))
    others = {storage_of(each) for each in call.written} - {storage_of(call.made[0])}
    if name in UNFOLLOWED or kwargs.get("out") is not None or others:
        raise NoDrawnMapError(f"{call.name} is called on them")
    if call.written and kwargs.pop("inplace", False):
        return function(*args, **kwargs)
    is_method = is_tensor_method_or_property(function)
    if not is_method and not call.written:
        return function(*args, **kwargs)
    if call.written and name.startswith("__i"):
        name = name.replace("__i", "__", 1)
    elif call.written:
        name = name.removesuffix("_")
        if not hasattr(Tensor, name):
            raise NoDrawnMapError(f"{call.name} is called on them")
    first, *rest = args
    return getattr(first, OPERATORS.get(name, name))(*rest, **kwargs)


def _settings_of_draw(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Settings | None:
    """The distribution that a function draws from; None of one that a map cannot have."""
    if name in NORMAL:
        return {"distribution": "normal"}
    if name not in NUMBERS:
        return None
    place, names, defaults = NUMBERS[name]
    unknown = kwargs.keys() - {*names, *FORM}
    if unknown or (place and not (args and isinstance(args[0], Tensor))):  # as nn.init.uniform_
        return None
    given = given_settings(dict(zip(names, defaults, strict=True)), args[place:][:2], kwargs)
    first, second = (given[each] for each in names)
    if not all(isinstance(each, (int, float)) for each in (first, second)):
        return None
    if name == "exponential_":
        return {"distribution": "exponential", "scale": 1 / first} if first > 0 else None
    if name == "uniform_":
        return {"distribution": "uniform", "scale": float(second - first), "shift": float(first)}
    return {"distribution": "normal", "scale": float(second), "shift": float(first)}
