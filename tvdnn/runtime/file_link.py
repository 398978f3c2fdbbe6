"""The measured rates of the section file: each direction alone, and beside the other one."""

import time
from collections.abc import Callable
from statistics import median
from threading import Event, Thread
from typing import Final

from ..errors import FileError
from ..planner.ir.costs import Link
from ..planner.ir.schedule import FILE_ALIGNMENT
from ..units import MIB
from .file_lanes import NAP_S
from .host_slab import Slab
from .section_file import SectionFile

LONG_NBYTES: Final = 32 * MIB
SHORT_NBYTES: Final = MIB
# Copies that are timed of each kind. Their median is taken: a disk's seconds vary.
COPIES: Final = 9
SECTION: Final = "bytes by which the disk is timed"


def measure_file_link(file: SectionFile, limit: int | None = None) -> Link:
    """Rates of long writes and reads in bytes per second, checksums included, as in a step.

    The latency is the seconds that one more copy costs, and half the nap of a thread that waits for
    its turn. The file grows to 64 MiB, but to at most `limit` bytes. Raises FileError where a copy
    fails.
    """
    nbytes = LONG_NBYTES if limit is None else min(LONG_NBYTES, limit // 2)
    nbytes = max(FILE_ALIGNMENT, nbytes // FILE_ALIGNMENT * FILE_ALIGNMENT)
    slab = Slab(pinned=False)
    slab.reserve(2 * nbytes)
    slab.bytes.random_()
    file.reserve(2 * nbytes)

    def write(size: int) -> None:
        file.write(slab.bytes[:size], 0, SECTION)

    def read(size: int) -> None:
        file.read(slab.bytes[nbytes : nbytes + size], nbytes, SECTION)

    file.write(slab.bytes[nbytes:], nbytes, SECTION)
    out_s, back_s = _seconds(write, nbytes), _seconds(read, nbytes)
    out_duplex_s = _seconds_beside(write, read, nbytes)
    back_duplex_s = _seconds_beside(read, write, nbytes)
    short = min(SHORT_NBYTES, nbytes)
    latency_s = max(0.0, _seconds(write, short) - short * out_s / nbytes)
    slab.close()
    fault = file.take_fault()
    if fault is not None:
        raise FileError(fault)
    taken_s = out_s, back_s, max(out_s, out_duplex_s), max(back_s, back_duplex_s)
    out, back, out_duplex, back_duplex = (nbytes / each for each in taken_s)
    return Link(out, back, out_duplex, back_duplex, latency_s + NAP_S / 2)


def _seconds(copy: Callable[[int], None], nbytes: int) -> float:
    """Median seconds of a copy, after a first one: a disk writes new bytes more slowly."""
    copy(nbytes)
    found = []
    for _ in range(COPIES):
        begin_s = time.perf_counter()
        copy(nbytes)
        found.append(time.perf_counter() - begin_s)
    return median(found)


def _seconds_beside(
    copy: Callable[[int], None], other: Callable[[int], None], nbytes: int
) -> float:
    """Median seconds of a copy while another thread makes copies of the other direction."""
    ended = Event()

    def keep_busy() -> None:
        while not ended.is_set():
            other(nbytes)

    thread = Thread(target=keep_busy, daemon=True)
    thread.start()
    try:
        return _seconds(copy, nbytes)
    finally:
        ended.set()
        thread.join()
