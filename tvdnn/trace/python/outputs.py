"""The outputs of a forward: its maps, and the containers that hold them."""

import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import TraceError

PLAIN = (bool, int, float, str, type(None))
MAKERS = (type, FunctionType, BuiltinFunctionType)
Gather = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class _Output:
    """The place of a map among a step's outputs."""

    index: int


@dataclass(frozen=True, slots=True)
class _Plain:
    """A returned value beside maps: None, a number, a text."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Several:
    """A container; `names` are the keys of a dict."""

    kind: Any
    items: tuple[Any, ...]
    names: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Object:
    """An instance of a user's class, as `copy.copy` makes it.

    `make(*args)` makes it. A state, items of a list and entries of a dict follow.
    """

    make: Any
    args: Any
    state: Any
    items: Any
    entries: Any


def taken_apart(returned: Any) -> tuple[Gather, Any]:
    """A function from maps to the value that a module returns, and the maps: one, or a list.

    Mappings, sequences and dataclasses of a user's classes are made as instances of these classes.
    Raises TraceError for a returned value of another kind.
    """
    if isinstance(returned, fx.Proxy) and isinstance(returned.node.meta["value"], Tensor):
        return operator.itemgetter(0), returned
    maps: list[Any] = []
    form = _form_of(returned, maps)
    return _flat_gather(form) or partial(_put_together, form), maps


def _flat_gather(form: Any) -> Gather | None:
    """The function that makes a tuple or a list of maps alone; None for another form."""
    flat = isinstance(form, _Several) and form.names is None
    if not flat or not all(isinstance(each, _Output) for each in form.items):
        return None
    gather: Gather = getattr(form.kind, "_make", form.kind)
    return gather


def _form_of(returned: Any, maps: list[Any], inside: bool = False) -> Any:
    """The form of a returned value; its maps are appended to `maps`.

    A map that stands twice `inside` an object is one output, as it is one tensor in torch.
    """
    if isinstance(returned, (fx.Proxy, Tensor)):
        return _form_of_map(returned, maps, inside)
    if type(returned) in (dict, OrderedDict):
        items = tuple(returned.values())
        return _several(type(returned), items, maps, inside, names=tuple(returned))
    if _is_sequence(returned):
        return _several(type(returned), tuple(returned), maps, inside)
    if isinstance(returned, PLAIN) or (inside and isinstance(returned, MAKERS)):
        return _Plain(returned)
    if isinstance(returned, (Mapping, tuple, list)) or is_dataclass(type(returned)):
        return _object(returned, maps)
    raise TraceError(_refusal(returned))


def _form_of_map(returned: Any, maps: list[Any], inside: bool) -> Any:
    parts = returned.node.meta["value"] if isinstance(returned, fx.Proxy) else None
    if isinstance(parts, (tuple, list)):
        return _several(type(parts), tuple(returned), maps, inside)
    places = [place for place, each in enumerate(maps) if inside and each is returned]
    if not places:
        maps.append(returned)
    return _Output(places[0] if places else len(maps) - 1)


def _is_sequence(returned: Any) -> bool:
    """Whether a value is a tuple or a list and nothing more, or a named tuple."""
    kind = type(returned)
    named = hasattr(kind, "_make") or kind.__module__ == "torch.return_types"
    known = kind in (tuple, list, torch.Size) or (isinstance(returned, tuple) and named)
    return known and not getattr(returned, "__dict__", None)


def _refusal(returned: Any) -> str:
    return (
        f"the network returns {type(returned).__name__} where it may return a tensor, or a tuple,"
        " list or dict of them"
    )


def _object(returned: Any, maps: list[Any]) -> _Object:
    """The form of an instance of a user's class; a map that it holds twice is one output."""
    try:
        make, args, *rest = returned.__reduce_ex__(4)
    except TypeError as error:
        raise TraceError(_refusal(returned)) from error
    state, items, entries = (*rest, None, None, None)[:3]
    listed = (None if each is None else [*each] for each in (items, entries))
    return _Object(make, *(_form_of(each, maps, inside=True) for each in (args, state, *listed)))


def _several(
    kind: Any,
    items: tuple[Any, ...],
    maps: list[Any],
    inside: bool,
    names: tuple[Any, ...] | None = None,
) -> _Several:
    return _Several(kind, tuple(_form_of(each, maps, inside) for each in items), names)


def _put_together(form: Any, maps: Sequence[Any]) -> Any:
    if isinstance(form, _Output):
        return maps[form.index]
    if isinstance(form, _Plain):
        return form.value
    if isinstance(form, _Object):
        return _made_again(form, maps)
    items = [_put_together(each, maps) for each in form.items]
    if form.names is not None:
        return form.kind(zip(form.names, items, strict=True))
    return getattr(form.kind, "_make", form.kind)(items)


def _made_again(form: _Object, maps: Sequence[Any]) -> Any:
    """An instance, made as by `copy.copy`."""
    parts = (form.args, form.state, form.items, form.entries)
    args, state, items, entries = (_put_together(part, maps) for part in parts)
    found = form.make(*args)
    if state is not None:
        _set_state(found, state)
    for each in items or ():
        found.append(each)
    for name, value in entries or ():
        found[name] = value
    return found


def _set_state(found: Any, state: Any) -> None:
    if hasattr(type(found), "__setstate__"):
        found.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        found.__dict__.update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(found, name, value)
