"""Which tests run, and in which order: workers begin with their shares of the slow ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ordering import FEW, SLOW, TESTS, share, slow_first, some_cases


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


@pytest.mark.parametrize(
    ("source", "options", "every"),
    [
        ("TESTPATHS", {}, FEW),
        ("INVOCATION_DIR", {}, FEW),
        ("ARGS", {}, 1),
        ("TESTPATHS", {"keyword": "exact"}, 1),
        ("TESTPATHS", {"markexpr": "gpu"}, 1),
        ("TESTPATHS", {"lf": True}, 1),
        ("TESTPATHS", {"--every": 1}, 1),
        ("ARGS", {"--every": 7}, 7),
    ],
)
def test_what_is_named_runs_whole(source: str, options: dict[str, Any], every: int) -> None:
    source_of = getattr(pytest.Config.ArgsSource, source)
    config: Any = SimpleNamespace(args_source=source_of, getoption=options.get)
    assert share(config) == every


def test_some_cases_leave_no_test_out_and_no_value() -> None:
    cases = [f"a.py::one[{a}-{b}-{c}]" for a in range(4) for b in range(2) for c in range(2)]
    names = [*cases, "a.py::two", "b.py::one[0]"]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    assert some_cases(items, 1) == items
    *found, two, other = [item.nodeid for item in some_cases(items, 4)]
    assert [two, other] == ["a.py::two", "b.py::one[0]"]
    assert len(found) == 4
    values = zip(*(name[len("a.py::one[") : -1].split("-") for name in found), strict=True)
    assert [set(each) for each in values] == [{*"0123"}, {*"01"}, {*"01"}]
