"""A plugin of pytest that records which tests enter which functions, and runs tests by a list.

    python -m pytest --every 1 -p bench.reaching_tests --record RECORD --functions FUNCTIONS
    python -m pytest --every 1 -p bench.reaching_tests --record RECORD --tests TESTS

All three are files of JSON. FUNCTIONS lists functions as "FILE NAME", and TESTS the names of the
tests to run, in this order. RECORD receives a `Record` of each test. Recording needs Python 3.12.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cache
from inspect import signature
from pathlib import Path
from types import CodeType
from typing import Any, Final, TypedDict

import pytest

ROOT: Final = Path(__file__).parents[1]
TOOL: Final = 4  # a number of sys.monitoring that no debugger, profiler or coverage tool has
CACHES: Final = ("tests", "tvdnn")  # packages
Cached: Final = type(cache(int))


class Record(TypedDict):
    """A test's result, and the functions that it entered, named as in FUNCTIONS."""

    failed: bool
    seconds: float
    own: list[str]  # functions entered while it ran
    # Functions entered as its file was imported, or as a fixture was made for several tests.
    of_file: list[str]
    starts_python: bool  # a process of its own, whose functions are not recorded


def pytest_addoption(parser: pytest.Parser) -> None:
    for name in ("record", "functions", "tests"):
        parser.addoption(f"--{name}")


def pytest_configure(config: pytest.Config) -> None:
    options, plugins = config.option, config.pluginmanager
    if options.functions is not None:
        plugins.register(Watcher(json.loads(Path(options.functions).read_text())))
    if options.tests is not None:
        plugins.register(Chooser(json.loads(Path(options.tests).read_text())))
    if options.record is not None and not hasattr(config, "workerinput"):
        plugins.register(Recorder(Path(options.record)))


class Chooser:
    """Leaves the tests that are asked for, in this order."""

    def __init__(self, names: Iterable[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(chosen, key=lambda item: self._places[item.nodeid])


class Watcher:
    """Sees in a process of tests which functions they enter, and tells it with a test's report."""

    def __init__(self, functions: Iterable[str]) -> None:
        self._functions = frozenset(functions)
        self._own: set[str] = set()
        self._of_file: dict[str, set[str]] = defaultdict(set)
        self._file = ""
        self._now = self._of_file[self._file]
        self._starts_python = False
        self._clears: list[Callable[[], None]] = []
        sys.addaudithook(self._audited)
        sys.monitoring.use_tool_id(TOOL, "reaching tests")
        events = sys.monitoring.events.PY_START
        sys.monitoring.register_callback(TOOL, events, self._started)
        sys.monitoring.set_events(TOOL, events)

    def _started(self, code: CodeType, _: int) -> object:
        function = f"{in_tree(code.co_filename)} {code.co_name}"
        if function not in self._functions:
            return sys.monitoring.DISABLE
        self._now.add(function)
        return None

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and sys.executable in arguments[1]:
            self._starts_python = True

    def pytest_sessionfinish(self) -> None:
        sys.monitoring.set_events(TOOL, 0)

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        self._now = self._of_file[file_of(collector.nodeid)]

    def pytest_collection_finish(self) -> None:
        self._clears = list(clears())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """A test enters all that it needs, as it finds nothing in caches."""
        self._file, self._starts_python = file_of(item.nodeid), False
        self._now = self._own = set()
        for clear in self._clears:
            clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        before = self._now
        self._now = before if fixturedef.scope == "function" else self._of_file[self._file]
        try:
            return (yield)
        finally:
            self._now = before

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            item.user_properties += [
                ("own", sorted(self._own)),
                ("of_file", sorted(self._of_file[self._file])),
                ("starts_python", self._starts_python),
            ]


class Recorder:
    """Writes what the reports of all processes tell."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[str, Record] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = self._record(report.nodeid)
        record["failed"] |= report.failed
        record["seconds"] += report.duration
        for name, value in report.user_properties:
            record[name] = value  # type: ignore[literal-required]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._record(report.nodeid)["failed"] = True

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._records, indent=1) + "\n")

    def _record(self, name: str) -> Record:
        empty = Record(failed=False, seconds=0.0, own=[], of_file=[], starts_python=False)
        return self._records.setdefault(name, empty)


@cache
def in_tree(path: str) -> str:
    return os.path.relpath(path, ROOT)


def file_of(name: str) -> str:
    """The file of a test."""
    return name.partition("::")[0]


def clears() -> Iterator[Callable[[], None]]:
    """Ways to clear the caches of the packages' functions.

    Functions without arguments are left out: they do something once in a process.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in CACHES:
            for value in vars(module).values():
                if isinstance(value, Cached) and signature(value).parameters:
                    yield value.cache_clear
