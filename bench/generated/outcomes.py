"""What came of a range of seeds: a file of rows, one a network, and their counts."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

from bench.generated.compare import REFUSED, RIGHT, Outcome

BINS = 16  # of ratios, for each factor of two
DIED = "the process died"


@dataclass(frozen=True, slots=True)
class Row:
    """One network's outcome, as the file has it."""

    seed: int
    kind: str
    why: str
    seconds: float
    ratios: Mapping[str, int]  # counts of log2 of ratios, times BINS
    commit: str = ""  # tvdnn's, if TVDNN_COMMIT named it

    def printed(self) -> str:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(fields)


def row_of(seed: int, outcome: Outcome, seconds: float) -> Row:
    ratios, commit = _binned(outcome.ratios), os.environ.get("TVDNN_COMMIT", "")
    return Row(seed, outcome.kind, signature(outcome), round(seconds, 3), ratios, commit)


def rows_in(path: Path) -> list[Row]:
    """The rows of a file, the last of each seed."""
    if not path.exists():
        return []
    rows = (Row(**json.loads(line)) for line in path.read_text().splitlines())
    return list({row.seed: row for row in rows}.values())


def signature(outcome: Outcome) -> str:
    """The cause of an outcome: its reason without paths, names of layers and numbers."""
    if outcome.kind == RIGHT:
        return ""
    if outcome.kind != REFUSED:
        return re.sub(r"\d+", "N", outcome.why)
    lines = outcome.why.splitlines()
    first = lines[1].strip() if len(lines) > 1 else lines[0]
    first = re.sub(r" at <generated>:\d+$", "", first)
    first = re.sub(r"^[\w.]+: ", "", first)
    first = re.sub(r"reads [\w.#]+ after", "reads a value after", first)
    return re.sub(r"\d+", "N", first)


def counts(rows: Iterable[Row]) -> dict[str, Any]:
    """How many networks had each outcome, refusals and faults by reason, and the median ratio."""
    rows = list(rows)
    kinds = Counter(row.kind for row in rows)
    ratios: Counter[int] = Counter()
    for row in rows:
        ratios.update({int(place): count for place, count in row.ratios.items()})
    return {
        "networks": len(rows),
        "outcomes": dict(kinds.most_common()),
        "median_ratio": _median(ratios),
        "reasons": {
            kind: dict(Counter(row.why for row in rows if row.kind == kind).most_common())
            for kind in kinds
            if kind != RIGHT
        },
        "commits": dict(Counter(row.commit for row in rows).most_common()),
        "seconds": round(sum(row.seconds for row in rows), 1),
    }


def _binned(ratios: Iterable[float]) -> dict[str, int]:
    found = Counter(str(round(BINS * log2(ratio))) for ratio in ratios)
    return dict(found)


def _median(ratios: Counter[int]) -> float | None:
    left = sum(ratios.values()) / 2
    for place, count in sorted(ratios.items()):
        left -= count
        if left <= 0:
            return round(2 ** (place / BINS), 3)
    return None
