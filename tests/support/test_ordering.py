"""The order of tests: none is lost, and every worker begins with its share of the slow ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ordering import SLOW, TESTS, slow_first


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
