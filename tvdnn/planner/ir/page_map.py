"""Page map: the physical pages behind the virtual pages of a paged arena.

A paged arena has more addresses than bytes, as GMLake (ASPLOS 2024) has by the CUDA driver's
virtual memory management. Residencies that follow each other in time have addresses of their own
and share physical pages. Sections lie side by side by address, wherever their pages are free.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ...units import MIB

PAGE_NBYTES = 2 * MIB  # the granularity of the CUDA driver on Hopper
MOST_PAGES = 4096  # of an arena: the driver takes some 30 us to map one, and plans map each often


def page_nbytes_for(arena_nbytes: int) -> int:
    """The bytes of a page of an arena: the least power of two that leaves it few pages."""
    nbytes = PAGE_NBYTES
    while nbytes * MOST_PAGES < arena_nbytes:
        nbytes *= 2
    return nbytes


class PageMap(NamedTuple):
    """By virtual page of the arena, the physical page that holds its bytes."""

    page_nbytes: int
    table: tuple[int, ...]

    @property
    def virtual_nbytes(self) -> int:
        return len(self.table) * self.page_nbytes

    def physical(self, offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Bytes [offset, offset + nbytes) by address, as ranges (low, high) of physical bytes.

        They come in the order of their addresses. Neighbours are one range.
        """
        page_nbytes, table = self.page_nbytes, self.table
        first, distance = divmod(offset, page_nbytes)
        low = high = table[first] * page_nbytes + distance
        left = nbytes
        for page in table[first : -(-(offset + nbytes) // page_nbytes)]:
            start = page * page_nbytes + distance
            if start != high:
                yield low, high
                low = start
            high = start + min(left, page_nbytes - distance)
            left -= high - start
            distance = 0
        yield low, high
