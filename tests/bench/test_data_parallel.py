"""The rows of processes that train together, from a run of two on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.offline.compiler import ROOT

WAYS = ["alone", "trainer", "shards", "virtualize"]  # torch's own take torchvision's networks


@pytest.mark.slow
def test_each_way_has_a_row(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "--ways", *WAYS)
    assert [row["way"] for row in rows] == WAYS
    assert {row["world"] for row in rows} == {2}
    for row in rows:
        assert abs(row["samples_per_s"] * row["step_s"] - 8.0) < 1e-9
    alone, together, sharded = rows[:3]
    assert together["planned_peak_bytes"] > alone["planned_peak_bytes"]
    assert sharded["loss_before"] == together["loss_before"]


@pytest.mark.slow
def test_ways_take_turns(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "--turns", "2", "--ways", *WAYS[:2])
    assert [(row["way"], row["turns"]) for row in rows] == [("alone", 2), ("trainer", 2)]
    assert all(row["step_s"] > 0.0 for row in rows)


def rows_of(folder: Path, *how: str) -> list[dict[str, Any]]:
    """The rows of a run of two processes."""
    path = folder / "rows.json"
    words = ["--standalone", "--nproc-per-node", "2", "-m", "bench.data_parallel", "-o", str(path)]
    words += ["--dtype", "tf32", *how, "--", "lenet5:4"]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    one_thread = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | one_thread, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows
