"""Pages: what lives at one time shares none, and there are no more than live at one time."""

from hypothesis import given
from hypothesis import strategies as st

from tvdnn.placement import AllocationGroup, BufferInterval
from tvdnn.placement.pages import PageRun, assign_pages, live_pages, page_runs
from tvdnn.planner.ir.page_map import PageMap

PAGE = 4
TIMES = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)
SINGLES = st.tuples(st.integers(1, 30), TIMES)


def group_of(sizes_and_times: list[tuple[int, list[int]]]) -> AllocationGroup:
    """Intervals side by side."""
    intervals, offset = [], 0
    for nbytes, (first, last) in sizes_and_times:
        intervals.append(BufferInterval(offset, nbytes, first, last))
        offset += nbytes
    return AllocationGroup.of(intervals)


@given(st.lists(st.lists(SINGLES, min_size=1, max_size=4).map(group_of), max_size=12))
def test_pages_are_shared_by_no_two_live_at_one_time(groups: list[AllocationGroup]) -> None:
    table, count = assign_pages(page_runs(groups, PAGE))
    assert all(0 <= page < count for page in table)
    users: dict[tuple[int, int], set[int]] = {}  # by page and time, virtual pages
    start = 0
    for group in groups:
        for each in group.intervals:
            touched = {byte // PAGE for byte in range(each.offset, each.offset + each.nbytes)}
            for virtual in touched:
                for time in range(each.first, each.last + 1):
                    key = table[start + virtual], time
                    users.setdefault(key, set()).add(start + virtual)
        start += -(-group.nbytes // PAGE)
    assert len(table) == start
    assert all(len(found) == 1 for found in users.values())


@given(st.lists(st.lists(SINGLES, min_size=1, max_size=4).map(group_of), max_size=12))
def test_there_are_as_many_as_live_at_one_time(groups: list[AllocationGroup]) -> None:
    runs = page_runs(groups, PAGE)
    _, count = assign_pages(runs)
    assert count == max(live_pages(runs, 21), default=0)


def test_the_pages_free_for_longest_are_taken_first() -> None:
    runs = [PageRun(0, 1, 0, 1), PageRun(0, 2, 1, 1), PageRun(3, 4, 2, 1)]
    assert assign_pages(runs) == ([0, 1, 0], 2)


def test_sections_side_by_side_share_the_page_of_their_border() -> None:
    group = group_of([(6, [0, 3]), (6, [2, 5])])
    assert page_runs([group], PAGE) == [
        PageRun(0, 3, 0, 1),
        PageRun(0, 5, 1, 1),
        PageRun(2, 5, 2, 1),
    ]


def test_bytes_by_address_are_ranges_of_physical_bytes() -> None:
    pages = PageMap(4, (5, 6, 0, 1))
    assert pages.virtual_nbytes == 16
    assert list(pages.physical(0, 16)) == [(20, 28), (0, 8)]
    assert list(pages.physical(2, 4)) == [(22, 26)]
    assert list(pages.physical(6, 4)) == [(26, 28), (0, 2)]
    assert list(pages.physical(9, 2)) == [(1, 3)]
