"""First steps in processes of their own: their parts, by Trainer and by virtualize."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["trainer", "virtualize"])
def test_a_row_has_the_parts_of_a_first_step(way: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    options = ["-o", path, "--way", way, "--dtype", "fp32", "lenet5:8"]
    command = [sys.executable, "-m", "bench.first_steps", *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(path.read_text())["rows"]
    subject = {"net": "lenet5", "batch": 8, "dtype": "fp32", "way": way, "budget": None}
    assert subject.items() <= row.items()
    assert row["parts"].keys() >= {"tracing", "planning", "allocating", "running", "other"}
    assert 0 < sum(row["parts"].values()) < row["seconds"] + 0.01  # which are rounded
    assert done.stdout.startswith(f"lenet5(8) fp32 by {way}, ")
