"""Paged layout: large groups get addresses of their own and share physical pages.

Where groups lie side by side by address alone, live bytes that fit the arena always find a place.
Groups of few pages would waste much of these. They lie at the bottom of the arena, at offsets.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...placement import AllocationGroup, assign_offsets
from ...placement.pages import PageRun, assign_pages, live_pages, page_runs, pages_of
from ..ir.page_map import PageMap
from .arena_layout import ArenaLayout
from .launch_limits import Array
from .lifetimes import group_lifetimes
from .timetable import Timetable

# Pages from which on a group lies in pages. The best of these is taken.
LEAST_PAGES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class PagedLayout:
    """The groups of a timetable that lie in pages, and those that lie at offsets below."""

    timetable: Timetable
    least: int  # pages from which on a group lies in pages
    groups: Sequence[AllocationGroup]
    in_pages: Sequence[int]  # numbers of groups
    offsets: Sequence[tuple[int, int]]  # number of a group, and its offset
    bottom: int  # pages below
    runs: Sequence[PageRun]
    live: Array  # pages by item of the timetable

    @property
    def num_pages(self) -> int:
        """The physical pages of the arena."""
        return self.bottom + int(self.live.max(initial=0))

    def excess(self, pages: int) -> Array:
        """By launch, the pages in use above so many until the next launch."""
        above = self.bottom + self.live - pages
        items = self.timetable.items
        starts = [index for index, item in enumerate(items) if item.is_launch]
        starts[:1] = [0]
        found: Array = np.maximum(0, np.maximum.reduceat(above[: len(items)], starts))
        return found

    def arena(self, page_nbytes: int) -> ArenaLayout:
        """The layout with its page map."""
        table, _ = assign_pages(self.runs)
        table = [*range(self.bottom), *(self.bottom + page for page in table)]
        starts = dict(self.offsets)
        page = self.bottom
        for number in self.in_pages:
            starts[number] = page * page_nbytes
            page += pages_of(self.groups[number].nbytes, page_nbytes)
        program = self.timetable.program
        addresses = [0] * len(program.intervals)
        for number, members in enumerate(program.groups):
            for interval, distance in members:
                addresses[interval] = starts[number] + distance
        pages = PageMap(page_nbytes, tuple(table))
        return ArenaLayout(tuple(addresses), self.num_pages * page_nbytes, pages)


def paged_layout(timetable: Timetable, page_nbytes: int, least: int | None = None) -> PagedLayout:
    """The layout with groups of at least so many pages in pages; default: that of fewest pages."""
    tried = LEAST_PAGES if least is None else (least,)
    return min(_layouts(timetable, page_nbytes, tried), key=lambda each: each.num_pages)


def _layouts(timetable: Timetable, page_nbytes: int, tried: Iterable[int]) -> Iterator[PagedLayout]:
    groups = group_lifetimes(timetable)
    for least in tried:
        in_pages = [n for n, group in enumerate(groups) if group.nbytes >= least * page_nbytes]
        below = [n for n, group in enumerate(groups) if group.nbytes < least * page_nbytes]
        offsets, nbytes = assign_offsets([groups[n] for n in below], None, 0)
        runs = page_runs([groups[n] for n in in_pages], page_nbytes)
        live = live_pages(runs, len(timetable.items) + 1)
        placed = [*zip(below, offsets, strict=True)]
        bottom = pages_of(nbytes, page_nbytes)
        yield PagedLayout(timetable, least, groups, in_pages, placed, bottom, runs, live)
