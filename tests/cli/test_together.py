"""Commands in processes that torchrun starts: the first prints what all have done."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.offline.compiler import ROOT
from tests.cli.test_train import dataset

PROCESSES = 2
THREADS_AFTER = """\
import sys
from pathlib import Path
from tvdnn.cli import main
status = main(sys.argv[1:])
for each in Path("/proc/self/task").glob("*/comm"):
    print("thread", each.read_text(), file=sys.stderr)
sys.exit(status)
"""


def launched(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The end of a command in two processes on the CPU."""
    return by_torchrun("-m", "tvdnn", *arguments)


def by_torchrun(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The end of two processes on the CPU."""
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES))
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *words, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | alone,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_bench_has_a_row_of_all_processes() -> None:
    options = ("--batch", "4", "--steps", "3", "--policy", "keep,vdnn-all", "--json", "-")
    done = launched("bench", "lenet5", *options)
    assert done.returncode == 0, done.stderr
    kept, moved = json.loads(done.stdout)
    for row in (kept, moved):
        assert row["world"] == PROCESSES
        assert abs(row["images_per_s"] * row["step_s"] - 4 * PROCESSES) < 1e-9
    assert moved["equal"] is True
    assert done.stderr.count("keep: running") == 1


@pytest.mark.slow
def test_processes_train_as_one_with_the_whole_batch(tmp_path: Path) -> None:
    data = dataset(tmp_path / "a.npz")
    options = ("--data", data, "--lr", "0.02", "--dtype", "fp32", "--epochs", "2")
    own = ("--batch", "8", "--checkpoint", tmp_path / "a.pt", "--shard", "optimizer")
    (tmp_path / "script.py").write_text(THREADS_AFTER)
    done = by_torchrun(tmp_path / "script.py", "train", "lenet5", *options, *own)
    assert done.returncode == 0, done.stderr
    assert "thread" in done.stderr
    assert "gloo" not in done.stderr  # such a thread could abort the process
    one = [sys.executable, "-m", "tvdnn", "train", "lenet5", *options, "--batch", "16"]
    alone = subprocess.run(
        [*map(str, one)], cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    together, expected = (
        [float(loss) for loss in re.findall(r"loss (\S+),", text)]
        for text in (done.stdout, alone.stdout)
    )
    assert len(together) == 2
    assert all(abs(a - b) < 1e-3 for a, b in zip(together, expected, strict=True))
    saved = torch.load(tmp_path / "a.pt")["trainer"]["optimizer"]["state"]
    assert saved[0]["momentum_buffer"].shape == (6, 1, 5, 5)  # of all, though each has a part


@pytest.mark.slow
def test_an_error_names_its_process() -> None:
    done = launched("bench", "lenet5", "--batch", "4", "--policy", "nothing")
    assert done.returncode != 0
    assert re.search(r"error: process [01]: ", done.stderr)  # torchrun ends the other one
