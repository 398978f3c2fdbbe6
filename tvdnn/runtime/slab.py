"""The slab: one pinned host allocation of exact size, shared by the schedules of a process and grown between steps."""

import mmap

import torch

from ..errors import DeviceError, HostMemoryError
from ..units import format_bytes

PAGE = 4096


def available_nbytes() -> int:
    """Host memory that a program may still take, from the kernel's own estimate."""
    with open("/proc/meminfo") as lines:
        found = {name: int(rest.split()[0]) * 1024 for name, rest in (line.split(":") for line in lines)}
    return found["MemAvailable"]


class Slab:
    """Page-locked host memory of exactly the bytes asked for, rounded up to pages.

    A plain mapping registered with CUDA: torch's pinned allocator rounds up to a power of two. On a machine without a
    GPU the memory is ordinary.
    """

    def __init__(self, *, pinned: bool) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.generation = 0
        self._pinned = pinned

    @property
    def nbytes(self) -> int:
        return self.bytes.numel()

    def reserve(self, nbytes: int) -> None:
        """Grow to at least `nbytes`. What was captured over the old memory must be captured again: see `generation`."""
        if nbytes <= self.nbytes:
            return
        self.close()
        free = available_nbytes()
        if nbytes > free:
            raise HostMemoryError(
                f"the plan keeps {format_bytes(nbytes)} on the host, which has {format_bytes(free)} free; "
                "raise the device budget, lower the batch, or give the host more memory"
            )
        mapping = mmap.mmap(-1, -(-nbytes // PAGE) * PAGE)
        self.bytes = torch.frombuffer(mapping, dtype=torch.uint8)
        self.bytes.zero_()
        self.generation += 1
        if self._pinned:
            _check(torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), self.nbytes, 0), "cudaHostRegister")

    def close(self) -> None:
        """Unpin and drop the memory."""
        if self._pinned and self.nbytes:
            torch.cuda.synchronize()
            _check(torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr()), "cudaHostUnregister")
        self.bytes = torch.empty(0, dtype=torch.uint8)


def _check(result: object, call: str) -> None:
    if int(result) != 0:  # type: ignore[call-overload]
        raise DeviceError(f"{call} returned {result}; lower host_budget or raise the limit of locked memory (ulimit -l)")
