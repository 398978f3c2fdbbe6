"""The bytes of a section where none are asked for."""

from math import prod
from typing import Final

from ..graph import DTYPE_NBYTES, Network
from ..units import MIB

LEAST_CHUNK_SIZE: Final = 16 * MIB  # copies reach 54.9 of an H200 link's 55.4 GB/s; of 4 MiB 53.9
MOST_CHUNK_SIZE: Final = 256 * MIB
# Sections of what all ops make, at most. By 16 MiB large steps have tens of thousands of launches.
# ResNet-50(1536), TF32, 12 GiB: 2.49 s; by 128 MiB 0.95 s (planned for an H200, 2026-11-26).
MOST_SECTIONS: Final = 2048


def default_chunk_size(network: Network, dtype: str) -> int:
    """The power of two of bytes by which the network's maps are few sections.

    It depends on neither fusion nor budget, as sums of a step depend on it.
    """
    shapes = (network.values[op.output].shape for op in network.ops)
    nbytes = DTYPE_NBYTES[dtype] * sum(map(prod, shapes))
    least = max(LEAST_CHUNK_SIZE, -(-nbytes // MOST_SECTIONS))
    return min(MOST_CHUNK_SIZE, 1 << (least - 1).bit_length())
