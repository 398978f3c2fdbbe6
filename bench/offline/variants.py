"""The variants of kernels that launches ask for, and which of them are compiled to the end.

A variant goes through all passes of Triton that can refuse it, up to its shared memory. The rest,
most of the time, is spent on few.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from triton._C.libtriton import nvidia
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITFunction

ALLOCATOR: Final = "add_allocate_tensor_memory"  # runs right behind that of shared memory


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as a launcher asks for it: `key` tells the kernel's variants apart."""

    case: str
    needs_wgmma: bool
    launcher: str
    kernel: Any
    key: str
    arguments: tuple[Any, ...]  # of the compilation

    @property
    def place(self) -> str:
        """Module and name: kernels of several modules may have one name."""
        module = self.kernel.fn.__module__.removeprefix("tvdnn.kernels.")
        return f"{module}.{self.kernel.fn.__name__}"


class Allocated(Exception):  # noqa: N818
    """Ends a compilation where shared memory is laid out."""

    def __init__(self, shared_nbytes: int, num_wgmma: int) -> None:
        super().__init__(shared_nbytes)
        self.shared_nbytes, self.num_wgmma = shared_nbytes, num_wgmma


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    stock = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, stock)


def variants_of(
    launch: Callable[[], None], launcher: Callable[[], str], case: str, *, wgmma: bool
) -> list[Variant]:
    """What a launch asks to be compiled, of which nothing is."""
    found: list[Variant] = []
    stock = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        stock(self, *args, grid=grid, warmup=True, **kwargs)

    def record(
        self: Any, key: str, signature: Any, device: int, constants: Any, *rest: Any
    ) -> None:
        arguments = (signature, device, constants, *rest)
        found.append(Variant(case, wgmma, launcher(), self, key, arguments))

    with replaced(JITFunction, "run", run), replaced(JITFunction, "_do_compile", record):
        launch()
    return found


def once_each(variants: Collection[Variant], *, by_launcher: bool) -> list[Variant]:
    """The first variant of each kernel, or of each launcher's kernels."""
    first: dict[tuple[str, str], Variant] = {}
    for each in variants:
        first.setdefault((each.launcher if by_launcher else "", each.place), each)
    return [*first.values()]


def merged(variants: Collection[Variant]) -> list[Variant]:
    """Equal ones of a launcher as one, which must use warpgroup products where one of them must."""
    found: dict[tuple[str, str, str], Variant] = {}
    for each in variants:
        place = (each.launcher, each.place, each.key)
        before = found.setdefault(place, each)
        found[place] = replace(before, needs_wgmma=before.needs_wgmma or each.needs_wgmma)
    return [*found.values()]


def compile_variant(variant: Variant, *, assembles: bool) -> Any:
    """The kernel; or `Allocated`, behind Triton's passes, where it is not to be assembled."""
    if assembles:
        return variant.kernel._do_compile(variant.key, *variant.arguments)
    stock = CUDABackend.make_llir

    def make_llir(self: Any, module: Any, *rest: Any) -> Any:
        text = str(module)
        passes = nvidia.passes.ttnvgpuir
        allocate = getattr(passes, ALLOCATOR)

        def stop(manager: Any) -> None:
            allocate(manager)
            manager.run(module, "allocate")
            raise Allocated(module.get_int_attr("ttg.shared"), text.count("warp_group_dot "))

        with replaced(passes, ALLOCATOR, stop):
            return stock(self, module, *rest)

    with replaced(CUDABackend, "make_llir", make_llir):
        try:
            return variant.kernel._do_compile(variant.key, *variant.arguments)
        except Allocated as allocated:
            return allocated
