"""Gluon, the language of the kernels for Hopper: names by version, and whether it runs here.

Gluon is experimental, and each version renames some operations. FORMS has the names by version. For
other versions, or where Gluon cannot be imported, ABSENT stands for all names: modules of kernels
can still be imported, and `available` is false.
"""

import functools
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.compiler.errors import CompilationError
from triton.runtime.errors import TritonError

from .device import capability, has_driver


class Absent:
    """Stands for a package that cannot be imported, and for everything in it."""

    def __getattr__(self, name: str) -> "Absent":
        return self

    def __call__(self, *args: Any, **settings: Any) -> "Absent":
        return self


@dataclass(frozen=True, slots=True)
class OperationNames:
    """The names that a version of Triton has for the operations whose names change."""

    load_box: str  # function of `tma` that copies a box from global to shared memory
    store_box: str  # function of `tma` that copies a box from shared to global memory
    reinterpret: str  # method of a shared memory descriptor: the bytes as another type and shape
    widens: bool  # whether `reinterpret` may give a larger view, several rows from any row on


BEFORE_3_8: Final = OperationNames(
    "async_copy_global_to_shared", "async_copy_shared_to_global", "_reinterpret", True
)
FORMS: Final[dict[tuple[int, int], OperationNames]] = {
    (3, 6): BEFORE_3_8,
    (3, 7): BEFORE_3_8,
    (3, 8): OperationNames("async_load", "async_store", "_reinterpret", True),
    (3, 9): OperationNames("async_load", "async_store", "reinterpret", False),
}
# Releases by which all kernels were compiled and run. Others compile a small kernel first, which
# takes 0.6 s before the first step (H200, 2026-11-29).
RELEASES: Final = ("3.6.0", "3.9.0")
HOPPER: Final = (9, 0)
_TRYING: Final = Lock()
COST: Final = (
    "convolutions and TF32 products run as plain Triton kernels, whose times are up to 1.3 times as"
    " long (128 to 128 channels at 112x112 with a mask: 1.77 ms instead of 1.41)"
)


def version() -> tuple[int, int]:
    """The first two numbers of Triton's version."""
    major, minor = re.findall(r"\d+", triton.__version__)[:2]
    return int(major), int(minor)


FORM: Final = FORMS.get(version())
ABSENT: Final = Absent()
_missing: str | None = None
try:
    if FORM is None:
        raise ImportError(f"Triton {triton.__version__} is not among the versions tested")
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    load_box = getattr(tma, FORM.load_box)
    store_box = getattr(tma, FORM.store_box)
    reinterpreted = getattr(gl.shared_memory_descriptor, FORM.reinterpret)
except (ImportError, AttributeError) as error:
    _missing = str(error)
    gluon = gl = fence_async_shared = mbarrier = tma = ABSENT
    warpgroup_mma = warpgroup_mma_wait = TensorDescriptor = ABSENT
    load_box = store_box = reinterpreted = ABSENT
MISSING: Final = _missing


def widens() -> bool:
    """Whether a view of shared memory may start at any row and have several rows.

    Triton 3.9 has no such views: a reinterpreted descriptor is no larger, and slices are aligned.
    """
    return FORM is not None and FORM.widens


def swizzled(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    """A descriptor of a tensor whose blocks lie in shared memory with a swizzle of 128 bytes.

    Warpgroup products read this layout.
    """
    layout = gl.NVMMASharedLayout(128, 8 * tensor.dtype.itemsize, len(block))
    return TensorDescriptor.from_tensor(tensor, block, layout)


def available() -> bool:
    """Whether kernels in Gluon run here: only on compute capability 9.0.

    Warns once where the GPU has that capability and Gluon does not compile the kernels.
    """
    if capability() != HOPPER:
        return False
    with _TRYING:
        return _usable()


@functools.cache
def _usable() -> bool:
    refusal = MISSING if MISSING is not None else _refusal()
    if refusal is not None:
        warnings.warn(
            f"Gluon of Triton {triton.__version__} is not used: {refusal}. On this GPU {COST}."
            f" Install a version of Triton from {_dotted(min(FORMS))} to {_dotted(max(FORMS))}.",
            stacklevel=2,
        )
    return refusal is None


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


def _refusal() -> str | None:
    """The error of compiling a kernel with every operation used, or None if Gluon compiles it.

    Nothing is compiled without a driver, or by a release that is known with its own assembler.
    """
    if not has_driver() or (triton.__version__ in RELEASES and _assembles_alone()):
        return None
    bytes_of = torch.empty(64, 64, dtype=torch.bfloat16, device="meta")
    box = swizzled(bytes_of, [64, 64])
    try:
        _trial_kernel.warmup(box, box, num_warps=4, grid=(1,))
    except (CompilationError, TritonError, RuntimeError) as error:
        return f"it refuses a kernel ({_root(error)!r})"
    return None


def _assembles_alone() -> bool:
    """Whether Triton's own assembler is used, without options of the user's."""
    assembler, options = knobs.nvidia.ptxas, getattr(knobs.nvidia, "ptxas_options", None)
    package = Path(triton.__file__).parent
    return assembler is not None and Path(assembler.path).is_relative_to(package) and not options


def _root(error: BaseException) -> BaseException:
    """The first error in the chain of causes."""
    return error if error.__cause__ is None else _root(error.__cause__)


@gluon.jit
def _trial_load(x_desc, x_bufs, full):
    mbarrier.expect(full.index(0), x_desc.block_type.nbytes)
    load_box(x_desc, [0, 0], full.index(0), x_bufs.index(0))


@gluon.jit
def _trial_product(x_bufs, y_desc, full):
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    mbarrier.wait(full.index(0), 0)
    left = reinterpreted(x_bufs.index(0), x_bufs.dtype, [64, 64], x_bufs.layout)
    acc = gl.zeros([64, 64], gl.float32, SUMS)
    acc = warpgroup_mma(left, x_bufs.index(0).permute([1, 0]), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    acc += gl.expand_dims(gl.sum(acc, 1), 1)
    low, high = gl.split(acc.reshape([64, 2, 32]).permute([0, 2, 1]))
    x_bufs.index(0).store(gl.join(high, low).reshape([64, 64]).to(x_bufs.dtype))
    fence_async_shared()
    store_box(y_desc, [0, 0], x_bufs.index(0))
    tma.store_wait(0)


@gluon.jit
def _trial_kernel(x_desc, y_desc) -> None:
    """Every Gluon operation of the kernels for Hopper, once."""
    x_bufs = gl.allocate_shared_memory(x_desc.dtype, [1, 64, 64], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(full.index(0), count=1)
    gl.warp_specialize(
        [(_trial_product, (x_bufs, y_desc, full)), (_trial_load, (x_desc, x_bufs, full))],
        [1],
        [40],
    )
