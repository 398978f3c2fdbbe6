"""Workers: no main module, no GPU, no rank, at most a few, and none outlives its parent."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Semaphore

import pytest

from tests.support.gated import Gate
from tvdnn.errors import BudgetError, WorkerEndedError, WorkerError
from tvdnn.workers import background
from tvdnn.workers.background import Background
from tvdnn.workers.cores import usable_cores
from tvdnn.workers.process import Worker

ROOT = Path(__file__).parents[2]
ORPHANED = """
import os, signal, sys, threading
from collections.abc import Iterator
from functools import partial
from tvdnn.workers.process import Worker

def work():
    worker = Worker()
    print(worker.call(os.getpid), flush=True)
    worker.call(partial(eval, sys.argv[1]))

threading.Thread(target=work, daemon=True).start()
sys.stdin.read()
"""
UNGUARDED = """
import os
from tvdnn.workers.process import Worker
print("runs")
worker = Worker()
print(worker.call(os.getpid) == worker.pid)
"""
UNBROKEN = "sum(range(10**15))"  # holds the interpreter's lock all the time
ASLEEP = "__import__('time').sleep(1000)"


def evaluated(text: str) -> "partial[object]":
    """A job that evaluates an expression."""
    return partial(eval, text)


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def test_a_worker_runs_jobs_in_a_process_of_its_own(worker: Worker) -> None:
    assert worker.call(os.getpid) == worker.pid != os.getpid()
    assert worker.call(partial(divmod, 7, 2)) == (3, 1)
    assert worker.call(partial(bytes, 1 << 20)) == bytes(1 << 20)


def test_what_a_job_prints_spoils_no_answer(worker: Worker) -> None:
    assert worker.call(partial(print, "to standard output")) is None
    assert worker.call(partial(os.write, 1, b"to its descriptor")) == 17
    assert worker.call(partial(max, 1, 2)) == 2


def test_what_a_job_raises_is_raised_here(worker: Worker) -> None:
    with pytest.raises(ValueError, match="invalid literal") as raised:
        worker.call(partial(int, "x"))
    assert "Traceback" in str(raised.value.__cause__)
    error = BudgetError("too little", floor_nbytes=3, step="conv")
    with pytest.raises(BudgetError, match="too little") as refused:
        worker.call(partial(Raises(), error))
    assert (refused.value.floor_nbytes, refused.value.step) == (3, "conv")
    with pytest.raises(WorkerError, match="SystemExit"):
        worker.call(sys.exit)
    with pytest.raises(TypeError, match="pickle"):  # what it returns cannot be sent
        worker.call(evaluated("__import__('threading').Lock()"))
    assert worker.call(os.getpid) == worker.pid


class Raises:
    """A function that raises its argument."""

    def __call__(self, error: Exception) -> None:
        raise error


def test_a_worker_that_is_killed_says_so(worker: Worker) -> None:
    with pytest.raises(WorkerEndedError, match=r"ended by signal 9: last words"):
        worker.call(evaluated("(os.write(2, b'last words'), os.kill(os.getpid(), 9))"))
    with pytest.raises(WorkerEndedError):
        worker.call(os.getpid)


def test_a_worker_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(ROOT / "no python"))
    with pytest.raises(WorkerError, match="does not start"):
        Worker()
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(WorkerError, match=r"sys\.executable"):
        Worker()


def test_a_worker_sees_no_gpu_no_rank_and_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID")
    for name in ranked:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    worker = Worker()
    try:
        seen: dict[str, str] = worker.call(evaluated("dict(__import__('os').environ)"))
        assert not seen.keys() & set(ranked)
        assert seen["CUDA_VISIBLE_DEVICES"] == ""
        modules = worker.call(evaluated("[*__import__('sys').modules]"))
        assert "tvdnn" in modules
        assert not {"torch", "triton"} & set(modules)
        assert worker.call(evaluated("__import__('tvdnn.planner.replan') and None")) is None
        assert "torch" not in worker.call(evaluated("[*__import__('sys').modules]"))
    finally:
        worker.close()


def test_a_main_module_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    """One that is no file, as a notebook's."""
    done = subprocess.run(
        [sys.executable, "-"],
        input=UNGUARDED,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["runs", "True"], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="watches a process by Linux's pidfd")
@pytest.mark.parametrize("job", [ASLEEP, UNBROKEN])
@pytest.mark.parametrize("fate", [signal.SIGKILL, None])
def test_a_worker_ends_with_its_parent(job: str, fate: signal.Signals | None) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANED, job],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        watched = os.pidfd_open(int(parent.stdout.readline()))
        try:
            if fate is None:  # it goes on to the end of its script
                parent.stdin.close()
            else:
                parent.send_signal(fate)
            parent.wait()
            ended, _, _ = select.select([watched], [], [], 60)
            assert ended
        finally:
            os.close(watched)


def test_no_more_workers_run_than_there_are_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_slots", Semaphore(1))
    gate = Gate.at(tmp_path)
    first: Background[None] = Background(lambda: gate.pass_through)
    pid = gate.await_one()
    second: Background[int] = Background(lambda: os.getppid)
    assert second._worker is None
    gate.open()
    assert first.result() is None
    assert second.result() == os.getpid() != pid


def test_a_background_job_is_cancelled(tmp_path: Path) -> None:
    gate = Gate.at(tmp_path)
    job: Background[None] = Background(lambda: gate.pass_through)
    pid = gate.await_one()
    assert not job.done
    job.cancel()
    assert isinstance(job.error(), WorkerEndedError)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_job_that_cannot_be_made_or_sent_tells_why() -> None:
    made: Background[None] = Background(lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    assert isinstance(made.error(), ZeroDivisionError)
    sent: Background[None] = Background(lambda: lambda: None)
    assert "pickle" in str(sent.error())


def test_cores_are_those_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(12), raising=False)
    groups, mount = tmp_path / "cgroup", tmp_path / "mount"
    assert usable_cores(groups, mount) == 12  # a machine without control groups
    groups.write_text("5:cpu,cpuacct:/job\n1:name=systemd:/\n0::/job/step\n")
    (mount / "job/step").mkdir(parents=True)
    assert usable_cores(groups, mount) == 12
    (mount / "job/step/cpu.max").write_text("max 100000\n")
    (mount / "cpu.max").write_text("max 100000\n")
    assert usable_cores(groups, mount) == 12
    (mount / "job/cpu.max").write_text("750000 100000\n")
    assert usable_cores(groups, mount) == 8
    (mount / "cpu,cpuacct/job").mkdir(parents=True)
    (mount / "cpu,cpuacct/job/cpu.cfs_period_us").write_text("100000\n")
    (mount / "cpu,cpuacct/job/cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(groups, mount) == 8
    (mount / "cpu,cpuacct/job/cpu.cfs_quota_us").write_text("400000\n")
    assert usable_cores(groups, mount) == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert usable_cores(groups, mount) == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert usable_cores(groups, mount) == 1
