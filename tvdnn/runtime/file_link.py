"""The measured rates of the section file: each direction alone, and beside the other one."""

import time
from collections.abc import Callable
from itertools import cycle
from threading import Event, Thread
from typing import Final

from ..errors import FileError
from ..planner.ir.costs import Link
from ..planner.ir.schedule import FILE_ALIGNMENT
from ..units import MIB
from .file_lanes import NAP_S
from .host_slab import Slab
from .section_file import SectionFile

LONG_NBYTES: Final = 16 * MIB
SHORT_NBYTES: Final = MIB
# Places in memory and in the file through which copies go in turn, as those of a step do.
PLACES: Final = 4
# Copies that are timed of each kind. Their mean is taken, as a step pays for slow ones, too.
COPIES: Final = 16
SECTION: Final = "bytes by which the disk is timed"

Copy = Callable[[int], None]  # of so many bytes


def measure_file_link(file: SectionFile, limit: int | None = None) -> Link:
    """Rates of long writes and reads in bytes per second, checksums included, as in a step.

    The latency is the seconds that one more copy costs, and half the nap of a thread that waits for
    its turn. The file grows to 128 MiB, but to at most `limit` bytes, or 32 KiB. Raises FileError
    where a copy fails.
    """
    most = LONG_NBYTES if limit is None else min(LONG_NBYTES, limit // (2 * PLACES))
    nbytes = max(FILE_ALIGNMENT, most // FILE_ALIGNMENT * FILE_ALIGNMENT)
    slab = Slab(pinned=False)
    slab.reserve(2 * PLACES * nbytes)
    slab.bytes.random_()
    file.reserve(2 * PLACES * nbytes)
    begins = [place * nbytes for place in range(2 * PLACES)]
    for at in begins:  # a disk writes new bytes more slowly, and what is read was written
        file.write(slab.bytes[at : at + nbytes], at, SECTION)
    written, was_read = cycle(begins[:PLACES]), cycle(begins[PLACES:])

    def write(size: int) -> None:
        at = next(written)
        file.write(slab.bytes[at : at + size], at, SECTION)

    def read(size: int) -> None:
        at = next(was_read)
        file.read(slab.bytes[at : at + size], at, SECTION)

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


def _seconds(copy: Copy, nbytes: int) -> float:
    """Mean seconds of a copy."""
    begin_s = time.perf_counter()
    for _ in range(COPIES):
        copy(nbytes)
    return (time.perf_counter() - begin_s) / COPIES


def _seconds_beside(copy: Copy, other: Copy, nbytes: int) -> float:
    """Mean seconds of a copy while another thread makes copies of the other direction."""
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
