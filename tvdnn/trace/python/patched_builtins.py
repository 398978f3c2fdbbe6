"""Python's builtins during a trace, which answer for a proxy as for its tensor."""

import builtins
import dis
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from torch import Tensor, fx, nn

from .reached_functions import functions_of

ASKING: Final = frozenset({"MATCH_CLASS", "LOAD_ATTR", "LOAD_METHOD"})  # bytecodes of Python's code


class PatchedBuiltins:
    """A context in which `isinstance`, `callable` and `type` take a map for its tensor.

    They do this for the thread that entered it, and not for code of torch and of tvdnn. `type` is
    replaced in the Python files of the functions that `net` reaches alone: code in C, which may be
    imported meanwhile, takes no other `type`.
    """

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._isinstance: Callable[[Any, Any], bool] = builtins.isinstance
        self._callable: Callable[[Any], bool] = builtins.callable
        self._thread = 0
        self._files: list[dict[str, Any]] = []

    def __enter__(self) -> "PatchedBuiltins":
        self._thread = threading.get_ident()
        files = {id(each.__globals__): each.__globals__ for each in functions_of(self._net)}
        self._files = [names for names in files.values() if "type" not in names]
        self._isinstance, self._callable = builtins.isinstance, builtins.callable
        builtins.isinstance = self._isinstance_of_maps()
        builtins.callable = self._callable_map  # type: ignore[assignment]
        for names in self._files:
            names["type"] = _TypeOfMaps(self._tensor)
        return self

    def __exit__(self, *error: object) -> None:
        for names in self._files:
            names.pop("type", None)
        builtins.isinstance = self._isinstance
        builtins.callable = self._callable  # type: ignore[assignment]

    def _isinstance_of_maps(self) -> Callable[[Any, Any], bool]:
        """A plain function, for speed: all of Python's code calls it, seldom for a map."""
        stock, proxy = self._isinstance, fx.Proxy

        def isinstance_of_maps(each: Any, kinds: Any) -> bool:
            if not stock(each, proxy):
                return stock(each, kinds)
            tensor = self._tensor(each, sys._getframe(1))
            return stock(each if tensor is None else tensor, kinds)

        return isinstance_of_maps

    def _callable_map(self, each: Any) -> bool:
        tensor = self._tensor(each, sys._getframe(1))
        return self._callable(each if tensor is None else tensor)

    def _tensor(self, each: Any, frame: FrameType) -> Any:
        """The tensor that a map stands for, if code that the tracer follows asks; else None."""
        if not self._isinstance(each, fx.Proxy) or asks_of_proxies(frame):
            return None
        if threading.get_ident() != self._thread:
            return None
        value = each.node.meta["value"]
        return _UNKNOWN if value is None else value


class _TypeOfMaps:
    """Stands for `type`: code may call it, subclass it and compare with it."""

    def __init__(self, tensor: Callable[[Any, FrameType], Any]) -> None:
        self._tensor = tensor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self._tensor(args[0], sys._getframe(1)) if len(args) == 1 else None
        return type(*args, **kwargs) if found is None else type(found)

    def __instancecheck__(self, each: Any) -> bool:
        return each is self or isinstance(each, type)

    def __subclasscheck__(self, kind: Any) -> bool:
        return kind is self or issubclass(kind, type)

    def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
        return (type,)

    def __eq__(self, other: object) -> bool:
        return other is self or other is type

    def __hash__(self) -> int:
        return hash(type)

    def __getitem__(self, item: Any) -> Any:
        return type[item]

    def __or__(self, other: Any) -> Any:
        return type | other

    def __ror__(self, other: Any) -> Any:
        return other | type

    def __getattr__(self, name: str) -> Any:
        return getattr(type, name)


def asks_of_proxies(frame: FrameType) -> bool:
    """Whether code is of tvdnn or of a module below torch, and wants to see proxies."""
    return str(frame.f_globals.get("__name__", "")).startswith(("torch.", "tvdnn."))


def reads_class(frame: FrameType) -> bool:
    """Whether the network's own code matches the class of a map, or reads it as an attribute.

    Functions in C, which ask for it too, must see a proxy: they read a tensor's memory.
    """
    if asks_of_proxies(frame):
        return False
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in ASKING


_UNKNOWN: Final = Tensor()  # stands for what a refused call yields
