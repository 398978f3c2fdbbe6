"""What torch's CUDA allocator makes of a request: a block that may be larger.

Requests are rounded up to 512 bytes. From 10 MiB on a block comes in steps of 2 MiB, and a rest of
at most 1 MiB stays with it (c10/cuda/CUDACachingAllocator.cpp).
"""

from ..units import MIB
from .intervals import ALIGNMENT, aligned

LARGE_NBYTES = 10 * MIB
STEP_NBYTES = 2 * MIB
LEAST_REST_NBYTES = MIB


def block_nbytes(nbytes: int) -> int:
    """Bytes of a fresh block for a request; a small one gets what it asks, but for rounding."""
    if nbytes < LARGE_NBYTES:
        return nbytes
    exact, block = aligned(nbytes), -(-nbytes // STEP_NBYTES) * STEP_NBYTES
    return block if block - exact <= LEAST_REST_NBYTES else exact


def usable_nbytes(room: int) -> int:
    """The most bytes whose block, and that of any fewer, takes at most `room`."""
    if room < LARGE_NBYTES:
        return room
    whole = room // STEP_NBYTES * STEP_NBYTES
    rest = min(room - whole, STEP_NBYTES - LEAST_REST_NBYTES - ALIGNMENT)
    return whole + rest // ALIGNMENT * ALIGNMENT
