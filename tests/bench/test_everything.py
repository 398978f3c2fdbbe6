"""Results of several commands in one file."""

import json
from pathlib import Path

import pytest

from bench.everything import JOBS, join
from bench.kept_peers import with_faster_peers

NAME = "compare_resnet3840_tf32"  # a command for keep, and one for auto
KEPT = {"net": "resnet3840", "batch": 16, "dtype": "tf32", "policy": "keep", "equal": None}
OTHER = {**KEPT, "policy": "auto", "slowdown": None}
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
    join(tmp_path, NAME, tmp_path / "none")
    kept, other = json.loads((tmp_path / f"{NAME}.json").read_text())["rows"]
    assert (kept["equal"], kept["commit"]) == (None, "c0")
    assert (other["equal"], other["commit"]) == (equal, "c1")
    assert other.get("slowdown") == (None if equal is None else 1.5)


def results(torch: str, **steps: float) -> dict[str, object]:
    """A file of a network's rows, by policy the seconds of a step."""
    case = {"net": "vgg16", "batch": 256, "dtype": "bf16", "commit": f"of {torch}"}
    rows = [
        {
            **case,
            "policy": name.replace("_", " "),
            "step_s": step_s,
            "slowdown": step_s / steps["keep"],
        }
        for name, step_s in steps.items()
    ]
    return {"environment": {"gpu": "H200", "torch": torch}, "rows": rows}


@pytest.mark.parametrize(
    ("before", "eager_s"),
    [
        ({"torch_eager": 5.0, "keep": 1.0}, 5.0),
        ({"torch_eager": 5.9, "keep": 1.0}, 6.0),  # within 3%
        ({"torch_eager": 7.0, "keep": 1.0}, 6.0),
        ({"keep": 1.0}, 6.0),
    ],
)
def test_rows_of_torch_that_were_faster_are_kept(before: dict[str, float], eager_s: float) -> None:
    document = with_faster_peers(
        results("2.11", torch_eager=6.0, keep=2.0), results("2.11", **before)
    )
    eager, keep = document["rows"]
    assert (eager["step_s"], eager["slowdown"]) == (eager_s, eager_s / 2)
    assert keep["step_s"] == 2.0


def test_rows_without_a_time_stay() -> None:
    failed = {"environment": {}, "rows": [{"policy": "torch eager", "step_s": None}]}
    assert with_faster_peers(failed, {"environment": {}, "rows": []}) == failed


def test_rows_of_another_version_are_not_kept() -> None:
    document = with_faster_peers(
        results("2.12", torch_eager=6.0, keep=2.0), results("2.11", torch_eager=5.0, keep=1.0)
    )
    assert document["rows"][0]["step_s"] == 6.0
