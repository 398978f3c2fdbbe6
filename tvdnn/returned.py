"""What a forward returns: its maps, and how a step's outputs are put together as it has them."""

import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, fx
from torch.fx.proxy import TraceError

PLAIN = (bool, int, float, str, type(None))
Gather = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class _Output:
    """The place of a map among a step's outputs."""

    index: int


@dataclass(frozen=True, slots=True)
class _Plain:
    """What is returned beside maps: None, a number, a text."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Several:
    """A container, by its class; `names` are the keys of a dict."""

    kind: Any
    items: tuple[Any, ...]
    names: tuple[Any, ...] | None = None


def taken_apart(returned: Any) -> tuple[Gather, Any]:
    """What makes of the maps what a module returns, and the maps: one, or several in a list.

    Mappings of classes that only the network knows become dicts.
    """
    if isinstance(returned, fx.Proxy) and isinstance(returned.node.meta["value"], Tensor):
        return operator.itemgetter(0), returned
    maps: list[Any] = []
    form = _form_of(returned, maps)
    return _flat_gather(form) or partial(_put_together, form), maps


def _flat_gather(form: Any) -> Gather | None:
    """What makes a tuple or a list that holds nothing but maps."""
    flat = isinstance(form, _Several) and form.names is None
    if not flat or not all(isinstance(each, _Output) for each in form.items):
        return None
    gather: Gather = getattr(form.kind, "_make", form.kind)
    return gather


def _form_of(returned: Any, maps: list[Any]) -> Any:
    if isinstance(returned, (fx.Proxy, Tensor)):
        parts = returned.node.meta["value"] if isinstance(returned, fx.Proxy) else None
        if isinstance(parts, (tuple, list)):
            return _several(type(parts), tuple(returned), maps)
        maps.append(returned)
        return _Output(len(maps) - 1)
    if isinstance(returned, Mapping):
        kind = OrderedDict if type(returned) is OrderedDict else dict
        return _several(kind, tuple(returned.values()), maps, names=tuple(returned))
    if isinstance(returned, (tuple, list)):
        return _several(type(returned), tuple(returned), maps)
    if isinstance(returned, PLAIN):
        return _Plain(returned)
    raise TraceError(
        f"the network returns {type(returned).__name__} where it may return a tensor, or a tuple,"
        " list or dict of them"
    )


def _several(
    kind: Any, items: tuple[Any, ...], maps: list[Any], names: tuple[Any, ...] | None = None
) -> _Several:
    return _Several(kind, tuple(_form_of(each, maps) for each in items), names)


def _put_together(form: Any, maps: Sequence[Any]) -> Any:
    if isinstance(form, _Output):
        return maps[form.index]
    if isinstance(form, _Plain):
        return form.value
    items = [_put_together(each, maps) for each in form.items]
    if form.names is not None:
        return form.kind(zip(form.names, items, strict=True))
    return getattr(form.kind, "_make", form.kind)(items)
