"""What networks beside torch in float64 came to, as Markdown: random ones, and those of others.

The files are those of `python -m bench.generated` and `python -m bench.others`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.markdown import table

RANDOM = "random_*.json"
OTHERS = "others.json"
OTHERS_TABLE = "others.md"
HEAD = ("networks", "on", "type", "right", "wrong", "failed", "refused", "median error")
NOTE = (
    "Right: outputs, gradients, statistics and a second step are at most 4 times as far from "
    "float64 as torch eager's in the same type, plus 16 units of rounding "
    "(`bench/generated/rule.py`). The median error is ours over eager's. Random networks on which "
    "torch itself fails are left out. Each network of others is [a row of its own]({rows})."
)
Values = Mapping[str, Any]


def markdown(folder: Path) -> str:
    """One row for each type of random networks and of those of others, and what they mean."""
    rows = [*_random_rows(folder), *_others_rows(folder)]
    return f"{table(HEAD, rows)}\n\n{NOTE.format(rows=f'bench/results/networks/{OTHERS_TABLE}')}"


def by_name(folder: Path) -> str:
    """Each network of others with what came of it at each size and in each type."""
    document = json.loads((folder / OTHERS).read_text())
    found: dict[tuple[str, str], list[Values]] = {}
    for row in document["rows"]:
        found.setdefault((row["library"], row["name"]), []).append(row)
    rows = [(*key, *_outcomes(each), _reason(each)) for key, each in sorted(found.items())]
    head = ("from", "network", "fp32", "bf16", "refused for")
    title = (
        f"# Networks of torchvision and timm, unchanged, on one {document['environment']['gpu']}"
    )
    return f"{title}\n\n{table(head, rows)}\n"


def _random_rows(folder: Path) -> Iterator[Sequence[str]]:
    for path in sorted(folder.glob(RANDOM)):
        values, (_, device, dtype) = json.loads(path.read_text()), path.stem.split("_")
        outcomes = values["outcomes"]
        known = values["networks"] - outcomes.get("torch fails", 0)
        place = values["environment"].get("gpu", device.upper())
        yield (
            f"{known:,} random",
            place,
            dtype,
            *_counts(outcomes),
            f"{values['median_ratio']:.2f}",
        )


def _others_rows(folder: Path) -> Iterator[Sequence[str]]:
    values = json.loads((folder / OTHERS).read_text())
    place = values["environment"].get("gpu", "CPU")
    for kind, tokens in (("torchvision's and timm's", False), ("those with attention", True)):
        for dtype, ratio in values["median_ratio"].items():
            rows = [r for r in values["rows"] if r["dtype"] == dtype and r["tokens"] == tokens]
            names = len({(row["library"], row["name"]) for row in rows})
            outcomes = Counter(row["outcome"] for row in rows)
            what = f"{names} of {kind}, {len(rows)} with sizes"
            yield (what, place, dtype, *_counts(outcomes), "" if tokens else f"{ratio:.2f}")


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
