"""Properties of the device that kernels are compiled for. Launchers choose tiles by them.

Without a GPU all answers are those of an H200, so that plans can be made for one.
"""

import functools
from threading import Lock
from typing import Any, Final

from triton import knobs
from triton.runtime import driver

INTERPRETED_SMS: Final = 4
INTERPRETED_SHARED_NBYTES: Final = 232448
LARGE_TILES_NBYTES: Final = 160 * 1024  # least shared memory of a program for Hopper's tiles
_MAKING: Final = Lock()
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


def compares_pairs() -> bool:
    """Whether an instruction compares pairs of bfloat16 values, from Hopper on."""
    return interpreted() or capability() >= (9, 0)


def has_driver() -> bool:
    """Whether Triton has a driver: whether kernels can be compiled for a device here."""
    return _driver() is not None


def num_sms() -> int:
    """Number of streaming multiprocessors of the current device."""
    if interpreted():
        return INTERPRETED_SMS
    return _property("multiprocessor_count")


def shared_nbytes() -> int:
    """Bytes of shared memory that one program may use on the current device."""
    if interpreted():
        return INTERPRETED_SHARED_NBYTES
    return _property("max_shared_mem")


def holds_large_tiles() -> bool:
    """Whether Hopper's tiles fit a program's shared memory; on capability 12.0 they do not."""
    return shared_nbytes() >= LARGE_TILES_NBYTES


def _driver() -> Any:
    """Triton's driver of the GPU, or None where there is no GPU."""
    with _MAKING:  # the first call compiles a module in C
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
