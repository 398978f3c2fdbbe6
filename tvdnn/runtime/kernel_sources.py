"""Sources of kernels: what Triton compiles, as bytes for another process.

A source names a kernel by module and name, and holds its signature, constants, attributes, target
and options. From the same source another process makes the same entry of Triton's cache.
"""

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import getclosurevars
from io import BytesIO
from types import FunctionType
from typing import Any, Final

import triton
from triton import knobs
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITCallable

_PARTS: Final = ("src", "target", "options")
# What another process imports, and nothing else: modules of others may ask torch, which it lacks.
_PACKAGES: Final = ("triton.", "tvdnn.kernels.")
_LONGEST_NAME: Final = 150  # characters of a kernel's name in the names of its files


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The arguments of `triton.compile`, and the key of the kernel in Triton's cache."""

    key: str
    source: Any  # triton.compiler.ASTSource, or Gluon's
    target: Any  # triton.backends.compiler.GPUTarget
    options: dict[str, Any]

    @property
    def is_compiled(self) -> bool:
        """Whether Triton's cache on disk has the kernel."""
        folder = _cached_kernel(self.key, str(knobs.cache.dir))
        return folder.get_group(f"{self.source.name[:_LONGEST_NAME]}.json") is not None

    def compile(self) -> None:
        """Compile the kernel into Triton's cache, unless it is there."""
        triton.compile(self.source, target=self.target, options=self.options)


@lru_cache(4096)  # making one makes a folder, and those who wait for many kernels ask often
def _cached_kernel(key: str, _cache: str) -> Any:
    """Triton's manager of a kernel's folder in the cache on disk."""
    return get_cache_manager(hashlib.sha256(key.encode()).hexdigest())


def source_of(key: str, compile_: Callable[[], Any]) -> KernelSource | None:
    """The source that a function of Triton compiles, by the variables in its closure.

    None for another function. The variables have these names in versions 3.6 to 3.9.
    """
    found = closure_of(compile_)
    if any(name not in found for name in _PARTS):
        return None
    source, target, options = (found[name] for name in _PARTS)
    return KernelSource(key, source, target, dict(vars(options)))


def closure_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The variables in the closure of a function by name; none of what is not written in Python."""
    return getclosurevars(function).nonlocals if isinstance(function, FunctionType) else {}


def pack(sources: Iterable[KernelSource]) -> bytes:
    """The sources as bytes. Kernels must be those that `can_pack`."""
    stream = BytesIO()
    _Packer(stream).dump(tuple(sources))
    return stream.getvalue()


def can_pack(source: KernelSource) -> bool:
    """Whether another process imports the kernel and all functions among its constants."""
    try:
        pack([source])
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True


def unpack(packed: bytes) -> tuple[KernelSource, ...]:
    """The sources of `pack`, in any process. Imports the modules of their kernels."""
    sources: tuple[KernelSource, ...] = _Unpacker(BytesIO(packed)).load()
    return sources


class _Packer(pickle.Pickler):
    """Names Triton's functions by module and name, beside their hash.

    Triton 3.6 hashes the global constants of a function that a kernel calls only if that function
    was hashed before the kernel. Keys in the cache then depend on the order of kernels, which is
    another one in other processes. These take the hashes of this process.
    """

    def persistent_id(self, obj: Any) -> tuple[str, str, str | None] | None:
        if type(obj).__module__.split(".")[0] == "torch":
            raise pickle.PicklingError(f"{obj!r} is not there in another process")
        if not isinstance(obj, JITCallable):
            return None
        module, name = obj.fn.__module__, obj.fn.__qualname__
        if not module.startswith(_PACKAGES) or _named(module, name) is not obj:
            raise pickle.PicklingError(f"{module}.{name} is not imported by another process")
        return module, name, obj.hash


class _Unpacker(pickle.Unpickler):
    def persistent_load(self, pid: tuple[str, str, str | None]) -> Any:
        module, name, found = pid
        function = self.find_class(module, name)
        if found is not None:
            function.hash = found
        return function


def _named(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
