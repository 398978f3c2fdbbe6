"""Child processes that share a GPU: turns, limits and ends."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from bench.side_by_side import Child, SideBySide
from bench.turn import Turn

BEGIN_AND_WAIT = """
import sys
print("begin part\\nworking", flush=True)
sys.stdin.readline()
"""
TAKE_TURNS = """
import sys
from pathlib import Path
from bench.turn import ParentLock, Turn
turn, path = Turn(ParentLock()), Path(sys.argv[1])
for _ in range(20):
    turn.take()
    turn.take()
    path.write_text(sys.argv[2])
    for _ in range(1000):
        assert path.read_text() == sys.argv[2]
    turn.give()
    turn.give()
print(sys.argv[2])
"""
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def python(text: str, *words: str) -> list[str]:
    return [sys.executable, "-c", text, *words]


def told(children: SideBySide, command: list[str]) -> list[str]:
    return [line for _, line in children.lines(command, ENVIRONMENT)]


def test_one_process_at_a_time_has_its_turn(tmp_path: Path) -> None:
    children, path = SideBySide(), tmp_path / "last"
    commands = [python(TAKE_TURNS, str(path), name) for name in "abc"]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda command: told(children, command), commands))
    assert found == [["a\n"], ["b\n"], ["c\n"]]


def test_a_failing_process_tells_its_last_error() -> None:
    with pytest.raises(ChildProcessError, match="ValueError: no such thing"):
        told(SideBySide(), python("raise ValueError('no such thing')"))


def test_a_process_over_its_limit_is_ended_and_named() -> None:
    children = SideBySide()
    lines = children.lines(python(BEGIN_AND_WAIT), ENVIRONMENT)
    child, _ = next(lines)
    assert child.working_s > 0.0
    children.end_late(3600.0)
    assert not child.late
    children.end_late(0.0)
    with pytest.raises(TimeoutError, match="part"):
        next(lines)
    assert not children.ended


def test_none_starts_behind_the_end() -> None:
    children = SideBySide()
    children.end()
    with pytest.raises(TimeoutError):
        told(children, python("print(1)"))


def test_waiting_for_a_turn_is_no_work(tmp_path: Path) -> None:
    children = SideBySide()
    waits = "from bench.turn import ParentLock\nprint('begin a', flush=True)\n"
    waits += "ParentLock().acquire()\nprint('alone', flush=True)"
    seen: list[Child] = [child for child, _ in children.lines(python(waits), ENVIRONMENT)]
    assert [child.working_s for child in seen] == [0.0]
    assert seen[0].begun == "a"


def test_processes_keep_to_their_gpu_and_cores() -> None:
    core = min(os.sched_getaffinity(0))
    shows = "import os\nfrom bench.turn import ParentLock\nParentLock().acquire()\n"
    shows += "print(os.environ['CUDA_VISIBLE_DEVICES'], *os.sched_getaffinity(0))"
    assert told(SideBySide(3, [core]), python(shows)) == [f"3 {core}\n"]


class Process:
    """A process that is never there to be signalled."""

    pid = 0

    def poll(self) -> int:
        return 0


def test_stops_count_where_they_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((10.0, 13.0, 20.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    child = Child(cast("Any", Process()))
    child.stop()
    child.go_on()
    assert [child.stopped_s(*span) for span in ((0, 9), (9, 11), (9, 30), (12, 30))] == [0, 1, 3, 1]
    child.stop()  # at 20 s, and so far not gone on
    assert child.stopped_s(12.0, 25.0) == 6.0


def test_waits_divide_the_work_of_a_turn() -> None:
    turn = Turn()
    turn.waits = [(1.0, 2.0), (4.0, 6.0), (8.0, 9.0)]
    assert turn.worked(3.0, 7.0) == [(3.0, 4.0), (6.0, 7.0)]
    assert turn.worked(6.0, 7.0) == [(6.0, 7.0)]
