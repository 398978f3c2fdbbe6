"""Rounding: the makers that run again at each point, for absent columns that are taken."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from .columns import AbsentColumn, Columns
from .remakes import Remake


def completed(columns: Columns, taken: Collection[int]) -> Mapping[int, frozenset[Remake]]:
    """By first pass of a segment, the remakes ahead of it for these absent columns.

    What they are made of and is not there is made as well.
    """
    gone: dict[str, list[AbsentColumn]] = defaultdict(list)
    due: dict[int, set[Remake]] = defaultdict(set)
    for number in sorted(taken):
        each = columns.absent[number]
        gone[each.buffer].append(each)
        due[each.point].add(each.remake)
    return {
        columns.first_pass[point]: frozenset(_with_ingredients(columns, point, found, gone))
        for point, found in due.items()
    }


def _with_ingredients(
    columns: Columns, point: int, wanted: set[Remake], gone: Mapping[str, list[AbsentColumn]]
) -> set[Remake]:
    found, due = set(wanted), sorted(wanted, key=lambda each: each.makers)
    while due:
        remake = due.pop()
        for name, writers in remake.takes:
            lost = any(each.low < point < each.point for each in gone.get(name, ()))
            other = columns.remakes.making(name, writers)
            if other is None or columns.first_pass[point] > other.until:
                continue  # then it stays
            if columns.is_used_from(name, point) and not lost:
                continue
            if other not in found and columns.remakes.of[name] not in found:
                found.add(other)
                due.append(other)
    return found
