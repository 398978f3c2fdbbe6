"""What Python and torch answer otherwise while a forward runs over proxies.

`isinstance` says of a map what it would say of the tensor. An autograd Function, whose backward no
proxy sees, is refused; torch's own checkpoint is followed. A region of torch.autocast is refused,
because an engine computes in one type.
"""

import builtins
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointFunction

from .side_effects import SideEffects

AUTOCAST = (
    "a region of torch.autocast, where an engine computes in one type (leave it out, and choose"
    " the type by the engine's dtype)"
)


class Tracer(Protocol):
    """What Exchanged asks of the tracer."""

    evaluating: bool
    side_effects: SideEffects

    def refuse(self, reason: str) -> None:
        """Note a refusal at the line that runs."""

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any) -> fx.Proxy:
        """A proxy of a new node."""


class Applier:
    """What applies an autograd Function."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.__name__ = f"{kind.__name__}.apply"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.apply(*args, **kwargs)


_ONE_TRACE = threading.RLock()


class Exchanged:
    """A context in which `isinstance`, autograd Functions and torch.autocast know of proxies.

    One thread at a time is in it, since it changes what all threads call.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._isinstance: Callable[[Any, Any], bool] = builtins.isinstance
        self._enter_autocast: Callable[[Any], Any] = torch.autocast.__enter__
        self._apply: Any = None

    def __enter__(self) -> "Exchanged":
        _ONE_TRACE.acquire()
        self._isinstance = builtins.isinstance
        self._enter_autocast = torch.autocast.__enter__
        self._apply = torch.autograd.Function.__dict__.get("apply")
        builtins.isinstance = self._isinstance_of_maps()
        torch.autocast.__enter__ = self._autocast_refused()  # type: ignore[method-assign]
        apply: Any = classmethod(self._function_applied())
        torch.autograd.Function.apply = apply
        return self

    def __exit__(self, *error: object) -> None:
        builtins.isinstance = self._isinstance
        torch.autocast.__enter__ = self._enter_autocast  # type: ignore[method-assign]
        if self._apply is None:
            del torch.autograd.Function.apply
        else:
            torch.autograd.Function.apply = self._apply
        _ONE_TRACE.release()

    def _isinstance_of_maps(self) -> Callable[[Any, Any], bool]:
        plain = self._isinstance

        def isinstance_of_maps(each: Any, kinds: Any) -> bool:
            if not plain(each, fx.Proxy) or _asks_of_proxies(sys._getframe(1).f_globals):
                return plain(each, kinds)
            value = each.node.meta["value"]
            return plain(each, kinds) or (value is not None and plain(value, kinds))

        return isinstance_of_maps

    def _autocast_refused(self) -> Callable[[Any], Any]:
        def enter(region: Any) -> Any:
            if not self.tracer.evaluating:
                self.tracer.refuse(AUTOCAST)
            return self._enter_autocast(region)

        return enter

    def _function_applied(self) -> Callable[..., Any]:
        plain = self._isinstance

        def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
            original = self._original(kind)
            places = [at for at, each in enumerate(args) if plain(each, fx.Proxy)]
            if not places and self.tracer.evaluating:
                return original(*args, **kwargs)
            if not places:
                return self.tracer.side_effects.noted(original, Applier(kind), args, kwargs)
            if kind is CheckpointFunction:
                return _checkpointed(*args)

            maps = tuple(args[at] for at in places)
            others = tuple(None if at in places else each for at, each in enumerate(args))

            def applied(*maps: Any) -> Any:
                given = dict(zip(places, maps, strict=True))
                filled = (given.get(at, each) for at, each in enumerate(others))
                return original(*filled, **kwargs)

            applied.__name__ = f"{kind.__name__}, an autograd Function with a backward of its own"
            return self.tracer.create_proxy("call_function", applied, maps, {})

        return apply

    def _original(self, kind: Any) -> Callable[..., Any]:
        """The method `apply` that a Function has outside this context."""
        found: Callable[..., Any] = (
            getattr(super(torch.autograd.Function, kind), "apply")  # noqa: B009
            if self._apply is None
            else self._apply.__get__(None, kind)
        )
        return found


def _checkpointed(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """Torch's re-entrant checkpoint, which has gradients where one of its tensors has."""
    graded = any(getattr(each, "requires_grad", False) is True for each in args)
    with torch.set_grad_enabled(graded and torch.is_grad_enabled()):
        return function(*args)


def _asks_of_proxies(names: dict[str, Any]) -> bool:
    """Whether code of these globals is torch's, but for torch.is_tensor, or the tracer's own."""
    return str(names.get("__name__", "")).startswith(("torch.", "tvdnn."))
