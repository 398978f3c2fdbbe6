"""What networks beside torch in float64 came to, as Markdown: random networks, then others'.

The files are those of `python -m bench.generated` and `python -m bench.others`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.entries import UNKNOWN
from bench.markdown import at, table

RANDOM = "random_*.json"
OTHERS = "others.json"
HEAD = ("networks", "on", "type", "right", "wrong", "failed", "refused", "median error", "commit")
NAMES_HEAD = ("from", "network", "fp32", "bf16", "refused for")
NOTE = (
    "Right: outputs, gradients, statistics and a second step are at most 4 times as far from "
    "float64 as torch eager's in the same type, plus 16 units of rounding "
    "(`bench/generated/rule.py`). The median error is ours over eager's. Random networks on which "
    "torch itself fails are left out."
)
Values = Mapping[str, Any]


def markdown(folder: Path) -> str:
    """A row for each type of random and of others' networks, then each of others' by name."""
    rows = [*_random_rows(folder), *_others_rows(folder)]
    return "\n\n".join((NOTE, table(HEAD, rows), by_name(folder)))


def by_name(folder: Path) -> str:
    """Each network of others with what came of it at each size and in each type."""
    document = _read(folder / OTHERS)
    found: dict[tuple[str, str], list[Values]] = {}
    for row in document["rows"]:
        found.setdefault((row["library"], row["name"]), []).append(row)
    rows = [(*key, *_outcomes(each), _reason(each)) for key, each in sorted(found.items())]
    title = "### Networks of torchvision and timm, unchanged, by name"
    place = document["environment"].get("gpu", "a CPU")
    return f"{title}\n\nOn one {place}, {at(_commits(document))}:\n\n{table(NAMES_HEAD, rows)}"


def _read(path: Path) -> Values:
    document: Values = json.loads(path.read_text())
    return document


def _commits(document: Values) -> tuple[str, ...]:
    """The commits of the rows, or else of the file."""
    of_rows = dict.fromkeys(row.get("commit") for row in document.get("rows", ()))
    found = tuple(commit for commit in of_rows if commit)
    return found or (document["environment"].get("commit") or UNKNOWN,)


def _random_rows(folder: Path) -> Iterator[Sequence[str]]:
    for path in sorted(folder.glob(RANDOM)):
        values, (_, device, dtype) = _read(path), path.stem.split("_")
        outcomes = values["outcomes"]
        known = values["networks"] - outcomes.get("torch fails", 0)
        place = values["environment"].get("gpu", device.upper())
        ratio = f"{values['median_ratio']:.2f}"
        commit = values["environment"].get("commit") or UNKNOWN
        yield (f"{known:,} random", place, dtype, *_counts(outcomes), ratio, commit)


def _others_rows(folder: Path) -> Iterator[Sequence[str]]:
    values = _read(folder / OTHERS)
    place = values["environment"].get("gpu", "CPU")
    for kind, tokens in (("torchvision's and timm's", False), ("those with attention", True)):
        for dtype, ratio in values["median_ratio"].items():
            rows = [r for r in values["rows"] if r["dtype"] == dtype and r["tokens"] == tokens]
            names = len({(row["library"], row["name"]) for row in rows})
            outcomes = Counter(row["outcome"] for row in rows)
            what = f"{names} of {kind}, {len(rows)} with sizes"
            error = "" if tokens else f"{ratio:.2f}"
            commits = ", ".join(_commits({**values, "rows": rows}))
            yield (what, place, dtype, *_counts(outcomes), error, commits)


def _counts(outcomes: Mapping[str, int]) -> Iterator[str]:
    return (f"{outcomes.get(kind, 0):,}" for kind in ("right", "wrong", "failed", "refused"))


def _outcomes(rows: Iterable[Values]) -> Iterator[str]:
    for dtype in ("fp32", "bf16"):
        sizes = sorted((row["side"], row["outcome"]) for row in rows if row["dtype"] == dtype)
        yield ", ".join(f"{outcome} at {side}" for side, outcome in sizes)


def _reason(rows: Sequence[Values]) -> str:
    """The first reason of a refusal, without the path of the file."""
    for row in rows:
        if row["outcome"] == "refused":
            lines = row["why"].splitlines()
            reason = lines[1] if len(lines) > 1 else lines[0]
            return reason.strip().partition(" at /")[0].replace("|", "\\|")
    return ""
