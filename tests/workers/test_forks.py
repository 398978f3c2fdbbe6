"""Jobs in copies of a process: each runs once, errors and ends of copies harm no other."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from tvdnn.workers.forks import run_in_forks

folder = Path(sys.argv[1])
def note(number):
    (folder / f"{number}-{os.getpid()}").touch()
    if number == 3:
        raise ValueError("one fails")
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
run_in_forks([partial(note, number) for number in range(30)], 4)
(folder / f"parent-{os.getpid()}").touch()
"""
ASLEEP = """
import os, sys, time
from functools import partial
from pathlib import Path
from tvdnn.workers.forks import run_in_forks

def sleep(number):
    (Path(sys.argv[1]) / str(os.getpid())).touch()
    time.sleep(1000)
run_in_forks([partial(sleep, number) for number in range(2)], 2)
"""


def test_every_job_runs_once_in_some_copy(tmp_path: Path) -> None:
    """A job that fails or ends its copy takes no other job with it."""
    subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], cwd=ROOT, check=True)
    noted = [path.name.split("-") for path in tmp_path.iterdir()]
    assert sorted(number for number, _ in noted) == sorted([*map(str, range(30)), "parent"])
    copies = {process for _, process in noted}
    assert len(copies) == 5  # with the parent


@pytest.mark.skipif(sys.platform != "linux", reason="copies end with their parent on Linux")
def test_copies_end_with_their_parent(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ASLEEP, str(tmp_path)], cwd=ROOT) as parent:
        while len(copies := [int(path.name) for path in tmp_path.iterdir()]) < 2:
            assert parent.poll() is None
            time.sleep(0.05)
        parent.send_signal(signal.SIGKILL)
    for copy in copies:
        while is_running(copy):
            time.sleep(0.05)


def is_running(process: int) -> bool:
    """Whether a process runs: one that has ended may be left without a parent to ask for it."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
