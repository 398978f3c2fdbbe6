"""Triton's compiled launchers, each read from its module before another thread's takes its place.

Up to Triton 3.6 each signature of kernels has a launcher, an extension of C, and all of them are
modules of one name. Python keeps one module of a name: an extension that is loaded once more puts
its functions into the module that the one before it left. So while kernels compile side by side, a
kernel could be given the launcher of another, and read its arguments as if they were the other's.
"""

from collections.abc import Callable
from functools import wraps
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from triton.runtime import build

_LOADER: Final = "_load_module_from_path"  # of triton.runtime.build, in all versions to 3.9


def keep_launchers_apart() -> None:
    """Have Triton load its extensions one at a time, and hold each one's functions by themselves.

    Does nothing where that is done already, or where this version of Triton loads them otherwise.
    """
    load = getattr(build, _LOADER, None)
    if load is not None and not hasattr(load, "__wrapped__"):
        setattr(build, _LOADER, _one_at_a_time(load))


def _one_at_a_time(load: Callable[..., ModuleType]) -> Callable[..., Any]:
    lock = Lock()

    @wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> SimpleNamespace:
        with lock:
            return SimpleNamespace(**vars(load(*args, **kwargs)))

    return loaded
