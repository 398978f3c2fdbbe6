"""The variants of kernels that launches ask for, and which of them are compiled to the end.

A variant goes through all passes of Triton that can refuse it, up to its shared memory. The rest,
most of the time, is spent on few. `covering` finds variants that together have each type of each
operand, each operand left out, and each value of each constant that is not a number.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from triton import knobs
from triton._C.libtriton import nvidia
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITFunction

from bench.offline.read_backs import early_read_backs
from bench.offline.register_operands import products_in_flight

Fact = tuple[str, str]
NO_FACTS: Final = ("constexpr", "i32", "i64")  # types of numbers and of constants
PRODUCTS: Final = ("conv.", "linear.")
IN_REGISTERS: Final = "conv.depthwise"  # whose products take no shared memory
ALLOCATOR: Final = "add_allocate_tensor_memory"  # runs right behind that of shared memory


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as a launcher asks for it."""

    case: str
    needs_wgmma: bool
    launcher: str
    kernel: Any
    key: str  # tells the kernel's variants apart
    arguments: tuple[Any, ...]  # of the compilation
    facts: frozenset[Fact]

    @property
    def place(self) -> str:
        """Module and name: kernels of several modules may have one name."""
        module = self.kernel.fn.__module__.removeprefix("tvdnn.kernels.")
        return f"{module}.{self.kernel.fn.__name__}"


class Allocated(Exception):  # noqa: N818
    """Ends a compilation where shared memory is laid out."""

    def __init__(
        self, shared_nbytes: int, num_wgmma: int, early_read_backs: int, products_in_flight: int
    ) -> None:
        super().__init__(shared_nbytes)
        self.shared_nbytes, self.num_wgmma = shared_nbytes, num_wgmma
        self.early_read_backs = early_read_backs
        self.products_in_flight = products_in_flight


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
    """The variants that a launch asks for. None is compiled."""
    found: list[Variant] = []
    stock = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        stock(self, *args, grid=grid, warmup=True, **kwargs)

    def record(
        self: Any, key: str, signature: Any, device: int, constants: Any, *rest: Any
    ) -> None:
        facts = facts_of(self.arg_names, signature, constants)
        arguments = (signature, device, constants, *rest)
        found.append(Variant(case, wgmma, launcher(), self, key, arguments, facts))

    with replaced(JITFunction, "run", run), replaced(JITFunction, "_do_compile", record):
        launch()
    return found


def facts_of(names: list[str], signature: Any, constants: Any) -> frozenset[Fact]:
    """Types of operands, without the sides of blocks, and constants that are not numbers."""
    kinds = {(name, _kind(type_)) for name, type_ in signature.items()}
    values = {
        (names[path[0]], str(value))
        for path, value in constants.items()
        if len(path) == 1 and (isinstance(value, bool) or not isinstance(value, int | float))
    }
    return frozenset({fact for fact in kinds if fact[1] not in NO_FACTS} | values | {("", "")})


def _kind(type_: Any) -> str:
    """`*bf16`, and of descriptors the type and the number of axes."""
    return re.sub(r"\d+(?=[,\]])", "n", str(type_)).split("],")[0]


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


def quickly_checked(variants: Collection[Variant]) -> list[Variant]:
    """All variants of products, whose tiles fill shared memory; of other kernels few."""
    products = [each for each in variants if _fills_shared_memory(each)]
    return products + covering([each for each in variants if not _fills_shared_memory(each)])


def _fills_shared_memory(variant: Variant) -> bool:
    return variant.place.startswith(PRODUCTS) and not variant.place.startswith(IN_REGISTERS)


def covering(variants: Collection[Variant]) -> list[Variant]:
    """Few variants of each kernel that together have all facts of its variants."""
    by_kernel: dict[str, list[Variant]] = {}
    for each in variants:
        by_kernel.setdefault(each.place, []).append(each)
    return [each for group in by_kernel.values() for each in _covering(group)]


def _covering(group: list[Variant]) -> Iterator[Variant]:
    """Variants with rare facts come first: they must be chosen, and have common facts too."""
    holders = Counter(fact for each in group for fact in each.facts)
    missing = frozenset(holders)
    while missing:
        best = max(
            group, key=lambda each: math.fsum(1 / holders[fact] for fact in each.facts & missing)
        )
        missing -= best.facts
        yield best


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
            shared = module.get_int_attr("ttg.shared")
            hazards = early_read_backs(text), products_in_flight(text)
            raise Allocated(shared, text.count("warp_group_dot "), *hazards)

        with replaced(passes, ALLOCATOR, stop):
            return stock(self, module, *rest)

    only_binaries = replaced(knobs.compilation, "store_binary_only", True)  # else files of no use
    with only_binaries, replaced(CUDABackend, "make_llir", make_llir):
        try:
            return variant.kernel._do_compile(variant.key, *variant.arguments)
        except Allocated as allocated:
            return allocated
