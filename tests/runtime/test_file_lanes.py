"""The threads of file lanes: they keep waits and orders, and no lane ever waits for a dead one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event, get_ident
from threading import enumerate as living
from time import sleep

import pytest

from tvdnn.planner.ir.schedule import Lane, lane_name
from tvdnn.runtime import file_lanes
from tvdnn.runtime.binding import Call
from tvdnn.runtime.file_lanes import FilePhase, FileRun
from tvdnn.runtime.host_counts import RUN, HostCounts
from tvdnn.runtime.section_file import SectionFile

WRITE, READ, OUT, BACK = Lane.FILE_WRITE, Lane.FILE_READ, Lane.OFFLOAD, Lane.PREFETCH
# Steps 1, 3 and 4 are of the file: a write behind an offload, another, and a read of the first.
PHASE = FilePhase({WRITE: [1, 3], READ: [4]}, {1: {OUT: 1}, 3: {OUT: 3}, 4: {WRITE: 2, BACK: 1}})
LAST = {WRITE: 4, READ: 5}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SectionFile]:
    found = SectionFile(tmp_path)
    yield found
    found.close()


@pytest.fixture
def counts() -> HostCounts:
    return HostCounts()


def threads() -> list[str]:
    names = {lane_name(lane) for lane in (WRITE, READ)}
    return [thread.name for thread in living() if thread.name in names]


def calls_that(does: Callable[[int], object]) -> Sequence[Call]:
    return [lambda index=index: does(index) for index in range(5)]  # type: ignore[misc]


@contextmanager
def begun(
    calls: Sequence[Call],
    file: SectionFile,
    counts: HostCounts,
    is_alive: Callable[[], object] = lambda: True,
) -> Iterator[FileRun]:
    """A run whose device has begun: it lets no count of the run before stand."""
    run = FileRun(PHASE, calls, file, counts)
    with run.ended(is_alive):
        run.begin()
        for lane in Lane:
            counts.set(lane, 0)
        counts.set(RUN, counts.runs)
        yield run


def let_go(counts: HostCounts) -> None:
    """Have the device's copies end."""
    counts.set(OUT, 3)
    counts.set(BACK, 1)


def told(counts: HostCounts) -> dict[Lane, int]:
    return {lane: counts.get(lane) for lane in LAST}


def test_what_is_awaited_and_what_is_told_last() -> None:
    assert set(PHASE.awaited) == {(OUT, 1), (OUT, 3), (WRITE, 2), (BACK, 1)}
    assert PHASE.last_counts == LAST


def test_a_copy_waits_for_each_count_and_then_tells_its_own(
    file: SectionFile, counts: HostCounts
) -> None:
    ran = {index: Event() for index in range(5)}
    going_on = Event()

    def does(index: int) -> None:
        ran[index].set()
        if index == 1:
            going_on.wait()

    with begun(calls_that(does), file, counts) as run:
        sleep(10 * file_lanes.NAP_S)
        assert not any(each.is_set() for each in ran.values())
        counts.set(OUT, 3)
        ran[1].wait()
        sleep(10 * file_lanes.NAP_S)
        assert told(counts) == {WRITE: 0, READ: 0}  # the write has begun, not ended
        going_on.set()
        ran[3].wait()
        sleep(10 * file_lanes.NAP_S)
        assert not ran[4].is_set()  # the read's place in the slab is not free
        counts.set(BACK, 1)
    assert ran[4].is_set()
    assert told(counts) == LAST
    assert run.spans.keys() == {1, 3, 4}
    assert all(start <= end for start, end in run.spans.values())
    assert run.spans[1][1] <= run.spans[3][0]
    assert not threads()


def test_threads_wait_for_their_own_run(file: SectionFile, counts: HostCounts) -> None:
    """The counts of the run before are still there as the threads start."""
    ran: list[int] = []
    with begun(calls_that(ran.append), file, counts):
        let_go(counts)
    assert sorted(ran) == [1, 3, 4]
    run = FileRun(PHASE, calls_that(ran.append), file, counts)
    with run.ended(lambda: True):
        run.begin()
        sleep(10 * file_lanes.NAP_S)
        assert len(ran) == 3  # all awaited counts stand, but they are the last run's
        for lane in Lane:
            counts.set(lane, 0)
        counts.set(RUN, counts.runs)
        sleep(10 * file_lanes.NAP_S)
        assert len(ran) == 3
        let_go(counts)
    assert sorted(ran) == [1, 1, 3, 3, 4, 4]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_leaves_its_counts_and_the_error_word(
    file: SectionFile, counts: HostCounts
) -> None:
    def does(index: int) -> None:
        if index == 1:
            raise MemoryError

    with begun(calls_that(does), file, counts):
        let_go(counts)
    assert told(counts) == LAST
    assert file.error_word.item() == 1
    assert "the lane file write failed" in (file.take_fault() or "")
    assert not threads()


def test_an_error_outside_ends_the_threads_without_their_copies(
    file: SectionFile, counts: HostCounts
) -> None:
    ran: list[int] = []
    with pytest.raises(KeyboardInterrupt), begun(calls_that(ran.append), file, counts):
        raise KeyboardInterrupt
    assert not ran
    assert told(counts) == LAST
    assert file.error_word.item() == 1
    assert not threads()


def test_a_device_that_fails_ends_the_threads(
    file: SectionFile, counts: HostCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_alive() -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(file_lanes, "PATIENCE_S", file_lanes.NAP_S)
    with pytest.raises(RuntimeError, match="illegal"), begun([], file, counts, is_alive):
        pass
    assert told(counts) == LAST
    assert file.error_word.item() == 1
    assert not threads()


def test_an_error_before_the_threads_start_is_passed_on(
    file: SectionFile, counts: HostCounts
) -> None:
    run = FileRun(PHASE, [], file, counts)
    with pytest.raises(ValueError, match="first"), run.ended(lambda: True):
        raise ValueError("first")
    assert not threads()


def test_waiting_threads_sleep(
    file: SectionFile, counts: HostCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each look that finds a count too low comes a nap."""
    done: list[tuple[int, str]] = []
    get = counts.get

    def looked(word: int) -> int:
        done.append((get_ident(), "look"))
        return get(word)

    def slept(seconds: float) -> None:
        assert seconds == file_lanes.NAP_S
        done.append((get_ident(), "nap"))
        sleep(seconds)

    monkeypatch.setattr(counts, "get", looked)
    monkeypatch.setattr(file_lanes.time, "sleep", slept)
    with begun(calls_that(lambda _: None), file, counts):
        while len(done) < 100:
            sleep(file_lanes.NAP_S)
        before = list(done)
        let_go(counts)
    for thread in {thread for thread, _ in before}:
        own = [what for who, what in before if who == thread]
        again = sum(pair == ("look", "look") for pair in pairwise(own))
        assert again <= 2  # the run has begun; a count was there at once
