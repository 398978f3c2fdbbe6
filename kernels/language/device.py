"""Facts of the device that kernels are compiled for, which launchers choose their tiles by."""

import functools
from typing import Any, Final

from triton import knobs
from triton.runtime import driver

INTERPRETED_SMS: Final = 4
INTERPRETED_SHARED_NBYTES: Final = 232448
LARGE_TILES_NBYTES: Final = 160 * 1024  # of shared memory, from which the tiles for Hopper fit
ABSENT: Final = {"multiprocessor_count": 132, "max_shared_mem": 232448}  # an H200


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1) and not on a device."""
    return bool(knobs.runtime.interpret)


def capability() -> tuple[int, int]:
    """Compute capability of the current device, (9, 0) for Hopper; (0, 0) in the interpreter."""
    if interpreted():
        return (0, 0)
    if (active := _driver()) is None:
        return (9, 0)
    return _capability(active, active.get_current_device())


def has_driver() -> bool:
    """Whether Triton has a driver, that is, kernels can be compiled for a device."""
    return _driver() is not None


def num_sms() -> int:
    """Streaming multiprocessors of the current device."""
    if interpreted():
        return INTERPRETED_SMS
    return _property("multiprocessor_count")


def shared_nbytes() -> int:
    """Bytes of shared memory that one program may use on the current device."""
    if interpreted():
        return INTERPRETED_SHARED_NBYTES
    return _property("max_shared_mem")


def holds_large_tiles() -> bool:
    """Whether a program has shared memory for Hopper's tiles: not by compute capability 12.0."""
    return shared_nbytes() >= LARGE_TILES_NBYTES


def _driver() -> Any:
    """Triton's driver of the GPU, or None where there is no GPU: plans then assume an H200."""
    try:
        return driver.active
    except RuntimeError:
        return None


def _property(name: str) -> int:
    if (active := _driver()) is None:
        return ABSENT[name]
    return _queried(active, active.get_current_device(), name)


@functools.cache
def _capability(active: Any, device: int) -> tuple[int, int]:
    major, minor = divmod(active.get_current_target().arch, 10)
    return (major, minor)


@functools.cache
def _queried(active: Any, device: int, name: str) -> int:
    return int(active.utils.get_device_properties(device)[name])
