"""Sizes of the blocks that torch's CUDA allocator gives for a request.

The allocator rounds requests up to 512 bytes. Blocks of 10 MiB and more come in steps of 2 MiB. A
remainder of at most 1 MiB stays with its block (c10/cuda/CUDACachingAllocator.cpp).
"""

from ..units import MIB
from .intervals import ALIGNMENT, aligned

# Bytes from which blocks come in steps.
LARGE_NBYTES = 10 * MIB
# Bytes of a step of large blocks.
STEP_NBYTES = 2 * MIB
# Most bytes of a remainder that stays with its block.
MOST_REST_NBYTES = MIB


def block_nbytes(nbytes: int) -> int:
    """Bytes of a fresh block for a request of `nbytes`.

    A request below 10 MiB is returned unrounded.
    """
    if nbytes < LARGE_NBYTES:
        return nbytes
    exact, block = aligned(nbytes), -(-nbytes // STEP_NBYTES) * STEP_NBYTES
    return block if block - exact <= MOST_REST_NBYTES else exact


def usable_nbytes(limit: int) -> int:
    """The largest request in bytes for which it and every smaller request fit `limit` bytes."""
    if limit < LARGE_NBYTES:
        return limit
    whole = limit // STEP_NBYTES * STEP_NBYTES
    rest = min(limit - whole, STEP_NBYTES - MOST_REST_NBYTES - ALIGNMENT)
    return whole + rest // ALIGNMENT * ALIGNMENT
