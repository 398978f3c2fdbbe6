"""The rows of processes that train together, from a run of two on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.offline.compiler import ROOT

WAYS = ["alone", "trainer", "shards", "virtualize"]  # torch's own take torchvision's networks


def test_each_way_has_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    words = [
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "bench.data_parallel",
        "-o",
        str(path),
        "--dtype",
    ]
    words += ["tf32", "--ways", *WAYS, "--", "lenet5:4"]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    one_thread = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | one_thread, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["way"] for row in rows] == WAYS
    assert {row["world"] for row in rows} == {2}
    for row in rows:
        assert abs(row["samples_per_s"] * row["step_s"] - 8.0) < 1e-9
    alone, together, sharded = rows[:3]
    assert together["planned_peak_bytes"] > alone["planned_peak_bytes"]
    assert sharded["loss_before"] == together["loss_before"]
