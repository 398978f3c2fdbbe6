"""Torch's functions and regions during a trace, which know of proxies.

`torch.jit.isinstance` takes a map for its tensor, and `torch.as_tensor` returns the map. A Function
of autograd is refused, because no proxy sees its backward. Torch's own checkpoint is followed. A
region of torch.autocast is refused, because an engine computes in one type. A region of hooks on
saved tensors is refused, because an engine would not call them.
"""

import builtins
import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointFunction

from ..traced_call import TracedCall
from .patched_builtins import PatchedBuiltins
from .side_effects import SideEffects

SEEDS = (
    "{} in forward, which sets the state of torch's random numbers, where an engine draws its own"
    " (leave it out)"
)
AUTOCAST = (
    "a region of torch.autocast, where an engine computes in one type (leave it out, and choose"
    " the type by the engine's dtype)"
)
SAVED = "a region of saved_tensors_hooks, which an engine would not call (leave it out)"


CreateProxy = Callable[..., fx.Proxy]  # (kind, target, args, kwargs)
ONE_TRACE = threading.RLock()  # patched functions are those of all threads


class Applier:
    """The method `apply` of an autograd Function, with a name for messages."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.__name__ = f"{kind.__name__}.apply"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.apply(*args, **kwargs)


class PatchedTorch:
    """A context in which builtins, autograd Functions and regions of torch know of proxies.

    One thread at a time may be in it, which holds ONE_TRACE.
    """

    def __init__(
        self, call: TracedCall, side_effects: SideEffects, create_proxy: CreateProxy
    ) -> None:
        self._call, self._side_effects, self._create_proxy = call, side_effects, create_proxy
        self._builtins = PatchedBuiltins(call.net)
        self._isinstance: Callable[[Any, Any], bool] = builtins.isinstance
        self._make_autocast: Callable[..., None] = torch.autocast.__init__
        self._enter_autocast: Callable[[Any], Any] = torch.autocast.__enter__
        self._enter_hooks: Callable[[Any], Any] = saved_tensors_hooks.__enter__
        self._jit: Any = torch.jit  # whose isinstance calls what it has imported as _isinstance
        self._jit_isinstance: Callable[[Any, Any], bool] = self._jit._isinstance
        self._as_tensor: Callable[..., Any] = torch.as_tensor
        self._apply: Any = None
        self._seeds: dict[tuple[Any, str], Callable[..., Any]] = {}

    def __enter__(self) -> "PatchedTorch":
        self._isinstance = builtins.isinstance
        self._make_autocast = torch.autocast.__init__
        self._enter_autocast = torch.autocast.__enter__
        self._apply = torch.autograd.Function.__dict__.get("apply")
        self._enter_hooks = saved_tensors_hooks.__enter__
        self._jit_isinstance, self._as_tensor = self._jit._isinstance, torch.as_tensor
        self._jit._isinstance = self._jit_isinstance_of_maps()
        torch.as_tensor = self._as_tensor_of_maps()
        torch.autocast.__init__ = self._autocast_of_maps()  # type: ignore[method-assign]
        torch.autocast.__enter__ = self._autocast_refused()  # type: ignore[method-assign]
        apply: Any = classmethod(self._function_applied())
        torch.autograd.Function.apply = apply
        saved_tensors_hooks.__enter__ = self._hooks_refused()  # type: ignore[method-assign]
        self._refuse_seeds()
        self._builtins.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._builtins.__exit__()
        for (place, name), function in self._seeds.items():
            setattr(place, name, function)
        torch.autocast.__init__ = self._make_autocast  # type: ignore[method-assign]
        torch.autocast.__enter__ = self._enter_autocast  # type: ignore[method-assign]
        saved_tensors_hooks.__enter__ = self._enter_hooks  # type: ignore[method-assign]
        self._jit._isinstance, torch.as_tensor = self._jit_isinstance, self._as_tensor
        if self._apply is None:
            del torch.autograd.Function.apply
        else:
            torch.autograd.Function.apply = self._apply

    def _refuse_seeds(self) -> None:
        """Refuse to set the state of torch's random numbers, as fork_rng does, too."""
        thread = threading.get_ident()

        def refused(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def seed(*args: Any, **kwargs: Any) -> Any:
                if not self._call.evaluating and threading.get_ident() == thread:
                    self._call.refuse(SEEDS.format(function.__name__))
                return function(*args, **kwargs)

            return seed

        for place in (torch, torch.random):
            for name in ("manual_seed", "set_rng_state"):
                function = self._seeds[place, name] = getattr(place, name)
                setattr(place, name, refused(function))

    def _autocast_of_maps(self) -> Callable[..., None]:
        """The `__init__` of a region, which takes the device "meta" of a map for the CPU."""

        def init(region: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            known = "cpu" if device_type == "meta" else device_type
            self._make_autocast(region, known, *args, **kwargs)

        return init

    def _jit_isinstance_of_maps(self) -> Callable[[Any, Any], bool]:
        def jit_isinstance(each: Any, kinds: Any) -> bool:
            return self._jit_isinstance(tree_map_only(fx.Proxy, _tensor_of, each), kinds)

        return jit_isinstance

    def _as_tensor_of_maps(self) -> Callable[..., Any]:
        plain = self._isinstance

        def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
            if not plain(data, fx.Proxy):
                return self._as_tensor(data, dtype=dtype, device=device)
            wanted = {"dtype": dtype, "device": device}
            given = {name: each for name, each in wanted.items() if each is not None}
            return data.to(**given) if given else data

        return as_tensor

    def _autocast_refused(self) -> Callable[[Any], Any]:
        def enter(region: Any) -> Any:
            if not self._call.evaluating:
                self._call.refuse(AUTOCAST)
            return self._enter_autocast(region)

        return enter

    def _hooks_refused(self) -> Callable[[Any], Any]:
        def enter(region: Any) -> Any:
            if not self._call.evaluating and _are_hooks_of_user(region):
                self._call.refuse(SAVED)
            return self._enter_hooks(region)

        return enter

    def _function_applied(self) -> Callable[..., Any]:
        plain = self._isinstance

        def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
            original = self._original(kind)
            places = [at for at, each in enumerate(args) if plain(each, fx.Proxy)]
            if not places and self._call.evaluating:
                return original(*args, **kwargs)
            if not places:
                run = partial(original, *args, **kwargs)
                return self._side_effects.noted(run, Applier(kind), args, kwargs)
            if kind is CheckpointFunction:
                return _checkpointed(*args)

            maps = tuple(args[at] for at in places)
            others = tuple(None if at in places else each for at, each in enumerate(args))

            def applied(*maps: Any) -> Any:
                given = dict(zip(places, maps, strict=True))
                filled = (given.get(at, each) for at, each in enumerate(others))
                return original(*filled, **kwargs)

            applied.__name__ = f"{kind.__name__}, an autograd Function with a backward of its own"
            return self._create_proxy("call_function", applied, maps, {})

        return apply

    def _original(self, kind: Any) -> Callable[..., Any]:
        """The method `apply` of a Function outside this context."""
        found: Callable[..., Any] = (
            getattr(super(torch.autograd.Function, kind), "apply")  # noqa: B009
            if self._apply is None
            else self._apply.__get__(None, kind)
        )
        return found


def _tensor_of(proxy: fx.Proxy) -> Any:
    """The tensor of the meta device that stands for a map; what a refused call yields is one."""
    value = proxy.node.meta["value"]
    return torch.empty(0, device="meta") if value is None else value


def _checkpointed(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """Follow torch's re-entrant checkpoint: with gradients if one of its tensors has one."""
    graded = any(getattr(each, "requires_grad", False) is True for each in args)
    with torch.set_grad_enabled(graded and torch.is_grad_enabled()):
        return function(*args)


def _are_hooks_of_user(region: saved_tensors_hooks) -> bool:
    return type(region) is saved_tensors_hooks or not type(region).__module__.startswith("torch.")
