"""Pages: memory in physical pages, each of which may lie at several addresses.

On a GPU the driver's virtual memory management maps them, on a CPU a file in memory.
"""

import ctypes
import mmap
import os
import warnings
import weakref
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import torch

from ..errors import DeviceError, EngineError
from ..units import format_bytes
from .driver import driver

PROT_NONE, MAP_FIXED, MAP_NORESERVE = 0, 0x10, 0x4000


class Mapping:
    """Addresses whose pages lie in physical pages. Closed, they are no more."""

    def __init__(self, owner: "Pages", table: Sequence[int]) -> None:
        self.bytes, unmap = owner.map(table)
        self._unmap = weakref.finalize(self, unmap)
        self._unmap.atexit = False

    def close(self) -> None:
        """Unmap the addresses. All views of them must be gone, and all steps over them ended."""
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self._unmap()


class Pages(Protocol):
    """Physical pages of one size."""

    count: int
    page_nbytes: int

    def map(self, table: Sequence[int]) -> tuple[torch.Tensor, Any]:
        """The bytes of these pages in this order, and what unmaps them."""

    def close(self) -> None:
        """Give the pages back. No mapping may be left."""


def maps_pages(device: torch.device) -> bool:
    """Whether memory of a device can lie in pages; of a GPU the driver is asked once.

    Where it cannot, a warning says so once, and arenas are planned without pages.
    """
    return _driver_maps(_index(device)) if device.type == "cuda" else hasattr(os, "memfd_create")


@cache
def _driver_maps(index: int) -> bool:
    result, gpu = driver.cuDeviceGet(index)
    _check(result, "cuDeviceGet")
    attributes = driver.CUdevice_attribute
    asked = attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    result, maps = driver.cuDeviceGetAttribute(asked, gpu)
    _check(result, "cuDeviceGetAttribute")
    if not maps:
        warnings.warn(
            f"the driver of GPU {index} has no virtual memory management (cuMemMap); arenas are "
            "planned without pages, and steps may take longer in tight budgets",
            RuntimeWarning,
            stacklevel=2,
        )
    return bool(maps)


def make_pages(count: int, page_nbytes: int, device: torch.device) -> Pages:
    """Physical pages on a device. Raises DeviceError where it has fewer bytes free."""
    if device.type == "cuda":
        return CudaPages(count, page_nbytes, device)
    return HostPages(count, page_nbytes)


class HostPages:
    """Pages of a file in the memory of the host."""

    def __init__(self, count: int, page_nbytes: int) -> None:
        self.count, self.page_nbytes = count, page_nbytes
        self._file = os.memfd_create("arena")
        os.ftruncate(self._file, count * page_nbytes)
        self._close = weakref.finalize(self, os.close, self._file)

    def map(self, table: Sequence[int]) -> tuple[torch.Tensor, Any]:
        """The bytes of these pages in this order, and what unmaps them."""
        nbytes = len(table) * self.page_nbytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        base = _mmap(None, nbytes, PROT_NONE, flags, -1, 0)
        starts = [i for i, page in enumerate(table) if i == 0 or page != table[i - 1] + 1]
        for first, end in pairwise([*starts, len(table)]):
            flags, size = mmap.MAP_SHARED | MAP_FIXED, (end - first) * self.page_nbytes
            place = base + first * self.page_nbytes
            access = mmap.PROT_READ | mmap.PROT_WRITE
            _mmap(place, size, access, flags, self._file, table[first] * self.page_nbytes)
        memory = (ctypes.c_uint8 * nbytes).from_address(base)
        return torch.frombuffer(memory, dtype=torch.uint8), lambda: _LIBC.munmap(base, nbytes)

    def close(self) -> None:
        """Give the pages back. No mapping may be left."""
        self._close()


class CudaPages:
    """Pages of a GPU. The driver gives each as an allocation of its own."""

    def __init__(self, count: int, page_nbytes: int, device: torch.device) -> None:
        self.count, self.page_nbytes = count, page_nbytes
        self._device = torch.device("cuda", _index(device))
        place = driver.CUmemLocation()
        place.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = self._device.index
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = place
        self._access = driver.CUmemAccessDesc()
        self._access.location = place
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._handles: list[Any] = []
        self._close = weakref.finalize(self, _release, self._handles)
        self._close.atexit = False
        torch.cuda.empty_cache()  # what torch's allocator holds in reserve is wanted here
        for _ in range(count):
            result, handle = driver.cuMemCreate(page_nbytes, properties, 0)
            if result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                self.close()
                free, _ = torch.cuda.mem_get_info(self._device)
                raise DeviceError(
                    f"the arena needs {format_bytes(count * page_nbytes)} and the device has "
                    f"{format_bytes(free)} free; pass a budget below that, or free device memory"
                )
            _check(result, "cuMemCreate")
            self._handles.append(handle)

    def map(self, table: Sequence[int]) -> tuple[torch.Tensor, Any]:
        """The bytes of these pages in this order, and what unmaps them."""
        nbytes = len(table) * self.page_nbytes
        result, base = driver.cuMemAddressReserve(nbytes, 0, 0, 0)
        _check(result, "cuMemAddressReserve")
        address = int(base)
        for place, page in enumerate(table):
            start = address + place * self.page_nbytes
            (result,) = driver.cuMemMap(start, self.page_nbytes, 0, self._handles[page], 0)
            _check(result, "cuMemMap")
        (result,) = driver.cuMemSetAccess(address, nbytes, [self._access], 1)
        _check(result, "cuMemSetAccess")
        found = torch.as_tensor(_Bytes(address, nbytes), device=self._device)
        device = self._device

        def unmap() -> None:
            torch.cuda.synchronize(device)
            _check(driver.cuMemUnmap(address, nbytes)[0], "cuMemUnmap")
            _check(driver.cuMemAddressFree(address, nbytes)[0], "cuMemAddressFree")

        return found, unmap

    def close(self) -> None:
        """Give the pages back. No mapping may be left."""
        self._close()


class _Bytes:
    """Bytes at an address of the GPU, as torch takes them."""

    def __init__(self, address: int, nbytes: int) -> None:
        place = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1"}
        self.__cuda_array_interface__ = {**place, "strides": None, "version": 3}


def _release(handles: list[Any]) -> None:
    while handles:
        driver.cuMemRelease(handles.pop())


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _check(result: Any, name: str) -> None:
    if result != driver.CUresult.CUDA_SUCCESS:
        raise EngineError(f"{name} failed: {result.name}")


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _mmap(*arguments: Any) -> int:
    found = _LIBC.mmap(*arguments)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise EngineError(f"mmap failed: {os.strerror(ctypes.get_errno())}")
    return int(found)
