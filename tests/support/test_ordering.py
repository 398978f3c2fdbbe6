"""Which tests run, and in which order: workers begin with their shares of the slow ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ordering import SLOW, TESTS, slow_first, some_cases


def named(*names: str) -> list[Any]:
    return [SimpleNamespace(path=TESTS / name) for name in names]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("fast", [0, 1, 7, 40])
def test_every_worker_begins_with_slow_tests(workers: int, fast: int) -> None:
    items = named(*["test_fast.py"] * fast, *SLOW)
    found = slow_first(items, workers)
    assert {id(item) for item in found} == {id(item) for item in items}
    assert len(found) == len(items)
    if fast >= workers * len(SLOW):
        heads = [found[number * len(found) // workers] for number in range(workers)]
        assert [item.path for item in heads] == [TESTS / name for name in SLOW[:workers]]


def test_files_of_slow_tests_exist() -> None:
    assert all(Path(TESTS, name).is_file() for name in SLOW)


def test_some_cases_leave_no_test_out() -> None:
    names = ["a.py::one[0]", "a.py::one[1]", "b.py::one[0]", "a.py::two", "a.py::one[2]"]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    assert some_cases(items, 1) == items
    assert [item.nodeid for item in some_cases(items, 2)] == [*names[:1], *names[2:]]
