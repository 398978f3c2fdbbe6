"""Pages: physical pages for groups that have addresses of their own.

A page is taken while any interval that touches it is live. A group takes the pages that are free
for longest: the steps that used them last have most likely ended. No order of free pages needs
more of them than the most that are live at one time.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from .intervals import AllocationGroup, live_by_time

NEVER = 1 << 60


class PageRun(NamedTuple):
    """Neighbouring virtual pages with one lifetime."""

    first: int  # time
    last: int  # time
    page: int  # virtual
    num_pages: int


def pages_of(nbytes: int, page_nbytes: int) -> int:
    """The pages of `page_nbytes` bytes that `nbytes` bytes take."""
    return -(-nbytes // page_nbytes)


def page_runs(groups: Sequence[AllocationGroup], page_nbytes: int) -> list[PageRun]:
    """The virtual pages of groups, one group behind the other, as runs of one lifetime."""
    found, start = list[PageRun](), 0
    for group in groups:
        found += _runs_of(group, start, page_nbytes)
        start += pages_of(group.nbytes, page_nbytes)
    return found


def assign_pages(runs: Sequence[PageRun]) -> tuple[list[int], int]:
    """By virtual page its physical page, and the number of physical pages."""
    table = [0] * sum(run.num_pages for run in runs)
    live: list[tuple[int, int, int]] = []  # last time, virtual page, pages
    free, most = deque[int](), 0
    for run in sorted(runs):
        while live and live[0][0] < run.first:
            _, page, count = heappop(live)
            free.extend(table[page : page + count])
        while len(free) < run.num_pages:
            free.append(most)
            most += 1
        taken = sorted(free.popleft() for _ in range(run.num_pages))
        table[run.page : run.page + run.num_pages] = taken
        heappush(live, (run.last, run.page, run.num_pages))
    return table, most


def live_pages(runs: Sequence[PageRun], num_times: int) -> np.ndarray:
    """By time, the pages that are live."""
    first, last, _, num_pages = np.array(runs, np.int64).reshape(-1, 4).T
    live = live_by_time(num_pages, first, last)
    return np.pad(live, (0, max(0, num_times - live.size)))[:num_times]


def _runs_of(group: AllocationGroup, start: int, page_nbytes: int) -> Iterator[PageRun]:
    count = pages_of(group.nbytes, page_nbytes)
    if len(group.intervals) == 1:
        yield PageRun(group.first, group.last, start, count)
        return
    firsts, lasts = np.full(count, NEVER), np.full(count, -1)
    for each in group.intervals:
        pages = slice(each.offset // page_nbytes, pages_of(each.offset + each.nbytes, page_nbytes))
        firsts[pages] = np.minimum(firsts[pages], each.first)
        lasts[pages] = np.maximum(lasts[pages], each.last)
    begins = np.flatnonzero((np.diff(firsts, prepend=-1) != 0) | (np.diff(lasts, prepend=-2) != 0))
    for low, high in zip(begins.tolist(), [*begins[1:].tolist(), count], strict=True):
        if lasts[low] >= 0:
            yield PageRun(int(firsts[low]), int(lasts[low]), start + low, high - low)
