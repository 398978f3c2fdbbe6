"""Triton's compiled launchers, each read from its module before another thread replaces the module.

Up to Triton 3.6 each signature of a kernel has a launcher, a C extension. All of these extensions
have one module name. Python keeps one module of a name: loading an extension again puts its
functions into the module of the one before. While kernels compile in parallel, a kernel could get
the launcher of another kernel, and read its arguments by the wrong signature.
"""

from collections.abc import Callable
from functools import wraps
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from triton.runtime import build

# The function of triton.runtime.build that loads extensions, in all versions up to 3.9.
_LOADER: Final = "_load_module_from_path"


def keep_launchers_apart() -> None:
    """Make Triton load its extensions one at a time, and keep the functions of each.

    Does nothing where that is already done, or where this version of Triton loads them another way.
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
