"""The slab: one pinned host allocation, which grows between steps."""

import mmap
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import SupportsInt

import torch

from ..errors import DeviceError, HostMemoryError
from ..units import KIB, format_bytes
from .numa import node_of_gpu, prefer_node

PAGE = 4096


def available_nbytes() -> int:
    """Bytes of host memory that a program may still allocate, as the operating system estimates."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return kib["MemAvailable"] * KIB


class Slab:
    """Page-locked host memory of `nbytes` bytes, rounded up to pages.

    The slab is a plain mapping that is registered with CUDA. Torch's pinned allocator would round
    up to a power of two. The mapping asks for huge pages, which lock faster; copies run as fast on
    small pages (H200). Pages lie on the GPU's NUMA node where that has room. Child processes do not
    see the mapping: copy on write would move pages that the GPU knows. Without a GPU the memory is
    not page-locked.
    """

    def __init__(self, *, pinned: bool) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.generation = 0
        self._pinned = pinned
        self._unpin: Callable[[], object] | None = None

    @property
    def nbytes(self) -> int:
        return self.bytes.numel()

    def reserve(self, nbytes: int) -> None:
        """Grow to at least `nbytes` bytes. CUDA graphs over the old bytes must be captured again.

        `generation` counts growths. Raises HostMemoryError where the host has fewer bytes.
        """
        if nbytes <= self.nbytes:
            return
        self.close()
        free = available_nbytes()
        if nbytes > free:
            raise HostMemoryError(
                f"the plan keeps {format_bytes(nbytes)} on the host, which has "
                f"{format_bytes(free)} free; raise the device budget, lower the batch, "
                "or give the host more memory"
            )
        mapping = mmap.mmap(-1, -(-nbytes // PAGE) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # where the kernel has none
            mapping.madvise(mmap.MADV_HUGEPAGE)
        if self._pinned:
            mapping.madvise(mmap.MADV_DONTFORK)
        memory = torch.frombuffer(mapping, dtype=torch.uint8)
        node = node_of_gpu() if self._pinned else None
        if node is not None:
            prefer_node(memory, node)
        memory.zero_()
        if self._pinned:
            register = torch.cuda.cudart().cudaHostRegister
            _check(register(memory.data_ptr(), memory.numel(), 0), "cudaHostRegister")
            # A slab that is dropped without close is unpinned before its mapping is freed.
            self._unpin = weakref.finalize(self, _unregister, memory)
        self.bytes = memory
        self.generation += 1

    def close(self) -> None:
        """Unpin and free the memory."""
        if self._unpin is not None:
            self._unpin()
            self._unpin = None
        self.bytes = torch.empty(0, dtype=torch.uint8)


def _unregister(pinned: torch.Tensor) -> None:
    torch.cuda.synchronize()
    unregister = torch.cuda.cudart().cudaHostUnregister
    _check(unregister(pinned.data_ptr()), "cudaHostUnregister")


def _check(result: SupportsInt, call: str) -> None:
    if int(result) != 0:
        raise DeviceError(
            f"{call} returned {result}; "
            "lower host_budget or raise the limit of locked memory (ulimit -l)"
        )
