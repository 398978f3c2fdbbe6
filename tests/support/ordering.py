"""Which tests run, and in which order: each worker begins with some of those that take long.

`pytest` alone takes five minutes on two cores: it runs one of every few cases of each test, and
leaves out those marked `slow`. Whoever names tests gets all of these.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
# Files of tests of 5 s and more, the longest first: none is begun when little else is left.
SLOW: Final = (
    "kernels/test_compile.py",
    "engine/test_digits.py",
    "test_readme.py",
    "ops/test_forks.py",
    "graph/test_fusion.py",
    "planner/test_auto.py",
)


FEW: Final = 6  # one of every so many cases, where nothing is named


def share(config: pytest.Config) -> int:
    """Of how many cases one runs: as asked for; else all of what is named, or one of a few."""
    asked: int | None = config.getoption("--every")
    if asked is not None:
        return asked
    named = config.args_source == pytest.Config.ArgsSource.ARGS
    chosen = any(config.getoption(each, None) for each in ("keyword", "markexpr", "lf"))
    return 1 if named or chosen else FEW


def some_cases(items: Sequence[pytest.Item], every: int) -> list[pytest.Item]:
    """Of each test one of every so many cases: the first, and of each further block the next.

    So no parameter has one value alone, as by a fixed stride where that has a common divisor with
    the number of its values.
    """
    seen: Counter[str] = Counter()
    chosen: list[pytest.Item] = []
    for item in items:
        test, _, _ = item.nodeid.partition("[")
        block, place = divmod(seen[test], every)
        if place == block % every:
            chosen.append(item)
        seen[test] += 1
    return chosen


def slow_first(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """The tests in an order whose equal parts, one a worker, begin with slow ones.

    Worksteal gives each worker such a part, and to one that has ended the last half of another's.
    """
    rank = {TESTS / name: number for number, name in enumerate(SLOW)}
    slow = sorted((item for item in items if item.path in rank), key=lambda item: rank[item.path])
    rest = [item for item in items if item.path not in rank]
    found: list[pytest.Item] = []
    for worker in range(workers):
        size = (len(items) - len(found)) // (workers - worker)
        mine = slow[worker::workers]
        found += mine
        found += rest[: max(0, size - len(mine))]
        del rest[: max(0, size - len(mine))]
    return found + rest
