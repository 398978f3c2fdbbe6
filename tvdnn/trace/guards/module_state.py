"""The guard on a module's state: one number for all that a trace of the module depends on."""

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain, count
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from ..python.held_containers import HeldContainers, HeldNames
from ..python.outside_reads import Outside
from ..state.constants import bits_of
from ..state.functionalize import version_of

REGISTRIES = ("_parameters", "_buffers", "_modules")
HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_backward_hooks", "_backward_pre_hooks"),
)
UNREAD = frozenset(  # entries of a module's __dict__ that no forward reads
    {
        *("_non_persistent_buffers_set", "_is_full_backward_hook"),
        *("_state_dict_hooks", "_state_dict_pre_hooks"),
        *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
    }
)
DEPTH = 20  # of nested containers in attributes that are compared
FEW = 16  # values of a tensor, which are compared at each call
MOST_STATES = 64  # remembered states; an older one that comes back gets a new number
PLAIN = (bool, int, float, complex, str, bytes, type(None))
Serial = Callable[[object], int]


def fingerprint(module: nn.Module, serial: Serial = id) -> Hashable:
    """All that a trace of `module` depends on.

    Two fingerprints are equal where both states have the same submodules, parameters and buffers
    (the same objects at the same paths), classes, training flags, requires_grad, shapes, hooks and
    plain attributes (numbers, texts, and lists, tuples, sets and dicts of them). A tensor that is
    an attribute counts by torch's count of writes to it, too, and by few values. Other attributes
    count by identity: `serial` numbers objects, and the objects must live as long as fingerprints
    are compared.
    """
    return tuple(
        (path, serial(each), serial(type(each)), *_entries(each, serial))
        for path, each in module.named_modules(remove_duplicate=False)
    )


def _entries(module: nn.Module, serial: Serial) -> Iterator[Hashable]:
    unread = {*UNREAD, *_set_by_hooks(module.__dict__)}
    for name, value in module.__dict__.items():
        if name not in unread and (name not in HOOKS or value):
            yield name, _frozen(value, serial)
            if name not in REGISTRIES:
                yield tuple(map(_written_state, _tensors_in(value)))


def _set_by_hooks(entries: Mapping[str, Any]) -> Iterator[str]:
    """The attributes that torch's own hooks compute before each forward, as a pruned weight."""
    for hook in entries.get("_forward_pre_hooks", {}).values():
        if type(hook).__module__.startswith("torch.nn.utils."):
            named = (getattr(hook, name, None) for name in ("name", "_tensor_name"))
            yield from (name for name in named if isinstance(name, str))


def _tensors_in(value: Any, depth: int = DEPTH) -> Iterator[Tensor]:
    """The tensors that an attribute is, or that lists, tuples and dicts in it hold."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each, depth - 1)


def _written_state(tensor: Tensor) -> Hashable:
    """What differs once a tensor that is an attribute is written, or its form has changed.

    Torch counts no writes by NumPy or through `.data`: of few values on the CPU the bits count.
    """
    values = b""
    if tensor.numel() <= FEW and tensor.device.type == "cpu" and tensor.layout is torch.strided:
        values = bytes(bits_of(tensor).tolist())
    return version_of(tensor), tensor.requires_grad, tensor.shape, values


def _frozen(value: Any, serial: Serial) -> Hashable:
    """A hashable form of an attribute: plain values by value, others by identity."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, Tensor):
        return serial(value), value.requires_grad, str(value.dtype), tuple(value.shape)
    if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
        return tuple((_frozen(key, serial), _frozen(each, serial)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value), tuple(_frozen(each, serial) for each in value)
    if type(value) in (set, frozenset):
        return frozenset(_frozen(each, serial) for each in value)
    return serial(value)


class TraceState:
    """Numbers the states of a module that a trace depends on: `now` gives equal states one number.

    A call of `now` on an unchanged ResNet-50 takes twice as long as reading the data pointers of
    its parameters, 40 to 80 us: it compares the present attributes with those of the call before,
    and makes a fingerprint only where some differ. A parameter whose `.data` was replaced is the
    same parameter: callers compare data pointers for that.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._numbers: dict[Hashable, int] = {}
        self._serials: Any = WeakIdKeyDictionary()  # of tensors and modules, which may be dropped
        self._others: dict[int, tuple[object, int]] = {}  # of all else, which is held
        self._count, self._states = count(), count()
        self._outside = Outside(module)
        self.refresh()

    @property
    def asks_grad_mode(self) -> bool:
        """Whether forward may ask for torch's grad mode."""
        return self._outside.asks_grad_mode

    def now(self) -> int:
        """The number of the present state."""
        try:
            same = self._is_as_seen()
        except (LookupError, RuntimeError, TypeError, ValueError):  # an entry is gone, or two
            same = False  # tensors or arrays were compared
        if not same:
            self._outside = Outside(self._module)
            self.refresh()
        return self._number

    def refresh(self) -> int:
        """The number of the present state, found anew: shapes and types behind `.data` count."""
        modules = list(self._module.modules())
        self._modules, self._dicts = modules, [each.__dict__ for each in modules]
        self._getters = [itemgetter(*_read(each)) for each in self._dicts]
        held = [HeldNames(each, tuple(dict.fromkeys(_read(each)))) for each in self._dicts]
        self._containers = HeldContainers(held, most=sys.maxsize, depth=DEPTH)
        attributes = [d[n] for d in self._dicts for n in _read(d) if type(d[n]) not in PLAIN]
        self._tensors = [*chain.from_iterable(map(_tensors_in, attributes))]
        names = (*REGISTRIES, *HOOKS)
        kept = [each[name] for each in self._dicts for name in names if name in each]
        self._filled, self._empty = [each for each in kept if each], [e for e in kept if not e]
        self._members = [dict(each) for each in self._filled]
        self._params = [p for each in modules for p in each._parameters.values() if p is not None]
        self._scalars = [
            (registry, name, each)
            for registry in self._filled
            for name, each in registry.items()
            if isinstance(each, Tensor) and each.numel() == 1
        ]
        self._seen = self._look()
        outside = self._outside.fingerprint(self._serial)
        found = fingerprint(self._module, self._serial), outside
        number = self._numbers.pop(found, None)
        self._number = next(self._states) if number is None else number
        self._numbers[found] = self._number  # the latest last
        if len(self._numbers) > MOST_STATES:
            del self._numbers[next(iter(self._numbers))]
        return self._number

    def _is_as_seen(self) -> bool:
        """Whether the state is that of the last refresh.

        Comparing dicts takes objects that are the same for equal, and raises for other tensors but
        for those of one element, which are compared by identity here.
        """
        return (
            self._filled == self._members
            and not any(self._empty)
            and self._look() == self._seen
            and self._containers.hold()
            and self._outside.hold()
            and all(registry[name] is each for registry, name, each in self._scalars)
        )

    def _entries(self) -> Iterator[tuple[Any, ...]]:
        """The attributes of each module beside registries and hooks."""
        return (get(each) for get, each in zip(self._getters, self._dicts))  # noqa: B905

    def _look(self) -> tuple[list[Any], ...]:
        """Lists that differ after a change, made by loops in C where they are long."""
        return (
            [*map(len, self._dicts)],
            [*map(type, self._modules)],
            [*self._entries()],
            [*map(_requires_grad, self._params)],
            [*map(_written_state, self._tensors)],
            self._containers.look(),
            self._outside.look(),
        )

    def _serial(self, value: object) -> int:
        """A number that no other object gets, living or gone."""
        if isinstance(value, (Tensor, nn.Module)):
            if value not in self._serials:
                self._serials[value] = next(self._count)
            number: int = self._serials[value]
            return number
        return self._others.setdefault(id(value), (value, next(self._count)))[1]


_requires_grad = attrgetter("requires_grad")


def _read(entries: dict[str, Any]) -> list[str]:
    """The names of a module's entries that a look compares one by one."""
    apart = {*UNREAD, *HOOKS, *REGISTRIES, *_set_by_hooks(entries)}
    names = [name for name in entries if name not in apart]
    return [*names, "training", "training"][: max(2, len(names))]  # two at least: a tuple
