"""The tensor cache beside Belady's choice, followed by hand."""

import numpy as np

from tvdnn.planner.lowering.idle import IdleInterval
from tvdnn.planner.offload.belady import belady_choice
from tvdnn.planner.offload.tensor_cache import least_recently_used


def idle(buffer: str, last: int, following: int, section: int = 0) -> IdleInterval:
    """A section of ten bytes between two launches of slots of the same numbers."""
    return IdleInterval(buffer, section, 10, last, following, last, following, following, last)


# Three maps are made by launches 0, 1 and 2. Launches 7, 8 and 9 read "b", "a" and "c" back.
MAPS = (idle("a", 0, 8), idle("b", 1, 7), idle("c", 2, 9))
REQUIRED = np.array([10, 20, 30, 40, 50, 40, 30, 30, 20, 10])


def names(chosen: list[IdleInterval] | None) -> list[str]:
    assert chosen is not None
    return [each.buffer for each in chosen]


def test_nothing_leaves_while_all_fits() -> None:
    assert least_recently_used(REQUIRED, MAPS, 50) == []


def test_the_oldest_use_leaves_first() -> None:
    """At launch 3 ten bytes are short, at launch 4 twenty. Belady takes the farthest next use."""
    assert names(least_recently_used(REQUIRED, MAPS, 40)) == ["a"]
    assert names(least_recently_used(REQUIRED, MAPS, 30)) == ["a", "b"]
    assert names(belady_choice(REQUIRED, MAPS, 40)) == ["c"]
    assert names(belady_choice(REQUIRED, MAPS, 30)) == ["c", "a"]


def test_all_that_is_idle_may_not_suffice() -> None:
    assert least_recently_used(REQUIRED, MAPS, 19) is None


def test_a_use_makes_a_section_the_most_recent() -> None:
    """Launch 3 reads "a" again, so that at launch 4 the oldest use is that of "b"."""
    again = (idle("a", 0, 3), idle("a", 3, 8), *MAPS[1:])
    assert names(least_recently_used(REQUIRED, again, 40)) == ["b"]


def test_a_section_that_returns_needs_its_bytes_and_drives_out_the_next() -> None:
    required = np.array([10, 20, 30, 40, 30, 40, 30, 10])
    maps = (idle("a", 0, 4), idle("a", 4, 7), idle("b", 1, 6), idle("c", 2, 7))
    found = least_recently_used(required, maps, 30)
    assert [(each.buffer, each.last) for each in found or ()] == [("a", 0), ("b", 1)]


def test_of_one_map_the_last_sections_leave() -> None:
    sections = [idle("a", 0, 8, section) for section in range(4)]
    found = least_recently_used(REQUIRED, sections, 30)
    assert [each.section for each in found or ()] == [3, 2]
