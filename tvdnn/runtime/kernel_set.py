"""Kernel sets: the Triton launchers, or their references under the same names."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

from triton import JITFunction

import tvdnn.kernels as kernel_package

from ..errors import InputError
from ..kernels.language.fp_fusion import fuse_multiply_adds
from ..kernels.language.overrides import Configurations


def kernel_files() -> Iterator[Path]:
    """The source files of all kernels, sorted by path."""
    for folder in kernel_package.__path__:
        yield from sorted(Path(folder).rglob("*.py"))


def _module_name(path: Path) -> str:
    (folder,) = (each for each in kernel_package.__path__ if path.is_relative_to(each))
    return ".".join((kernel_package.__name__, *path.relative_to(folder).with_suffix("").parts))


KERNEL_MODULES = tuple(import_module(_module_name(path)) for path in kernel_files())
_SUFFIX = "_reference"


def jit_functions() -> list[JITFunction]:
    """Triton's kernels of all modules, and the functions that they call, each once."""
    values = (value for module in KERNEL_MODULES for value in vars(module).values())
    found = {id(value): value for value in values if isinstance(value, JITFunction)}
    return list(found.values())


for _function in jit_functions():
    fuse_multiply_adds(_function)


def kernel_set(name: str, configurations: Configurations | None = None) -> SimpleNamespace:
    """The launchers called `name`: "triton", run with `configurations`, or "torch"."""
    if name not in ("triton", "torch"):
        raise InputError(f"kernels {name!r} are not known; choose triton or torch")
    found: dict[str, Callable[..., None]] = {}
    for module in KERNEL_MODULES:
        found |= _launchers(module, reference=name == "torch")
    if name == "triton" and configurations is not None:
        found = {stem: configurations.around(launcher) for stem, launcher in found.items()}
    return SimpleNamespace(**found)


def _launchers(module: ModuleType, *, reference: bool) -> dict[str, Callable[..., None]]:
    stems = [name.removesuffix(_SUFFIX) for name in vars(module) if name.endswith(_SUFFIX)]
    return {
        stem: getattr(module, stem + (_SUFFIX if reference else ""))
        for stem in stems
        if isinstance(vars(module).get(stem), FunctionType)  # not a jit function
    }
