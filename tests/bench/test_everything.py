"""Results of several commands in one file."""

import json
from pathlib import Path

import pytest

from bench.everything import JOBS, join

NAME = "compare_resnet3840_tf32"  # a command for keep, and one for auto
KEPT = {"net": "resnet3840", "batch": 16, "dtype": "tf32", "policy": "keep", "equal": None}
OTHER = {**KEPT, "policy": "auto"}
SAME = {"weights": "ab", "losses": [7.5, 7.25]}


@pytest.mark.parametrize(
    ("found", "equal"),
    [
        (SAME, True),
        ({**SAME, "weights": "ba"}, False),
        ({**SAME, "losses": [7.5, 7.5]}, False),
        ({**SAME, "batch": 32}, None),
    ],
)
def test_rows_of_one_command_are_compared_with_keep_of_another(
    found: dict[str, object], equal: bool | None, tmp_path: Path
) -> None:
    assert len(JOBS[NAME]) == 2
    rows = [{**KEPT, **SAME, "step_s": 2.0}, {**OTHER, **found, "step_s": 3.0}]
    for number, row in enumerate(rows):
        document = {"title": NAME, "environment": {"commit": f"c{number}"}, "rows": [row]}
        (tmp_path / f"{NAME}.{number}.json").write_text(json.dumps(document))
    join(tmp_path, NAME)
    kept, other = json.loads((tmp_path / f"{NAME}.json").read_text())["rows"]
    assert (kept["equal"], kept["commit"]) == (None, "c0")
    assert (other["equal"], other["commit"]) == (equal, "c1")
    assert other.get("slowdown") == (None if equal is None else 1.5)
