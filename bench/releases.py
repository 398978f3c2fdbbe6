"""Times of a step and of the first one by Triton's version, as Markdown.

Each file of bench/results/releases is of one network and one version of Triton:

    python -m bench.steps compare --net vgg16 --cold --eager-only --parts -o FILE
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.markdown import table

KEEP, EAGER = "keep", "torch eager"
HEAD = (
    "network",
    "batch",
    "type",
    "Triton",
    "torch eager",
    "`keep`",
    "first step, nothing cached",
    "commit",
)


def markdown(folder: Path) -> str:
    """A row for each network and version; torch's own step beside the version that it has."""
    rows = [_row(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    return table(HEAD, rows)


def _row(document: Mapping[str, Any]) -> tuple[str, ...]:
    rows = {row["policy"]: row for row in document["rows"]}
    kept, eager = rows[KEEP], rows.get(EAGER)
    return (
        kept["net"],
        str(kept["batch"]),
        kept["dtype"],
        document["environment"]["triton"],
        "" if eager is None else _milliseconds(eager["step_s"]),
        _milliseconds(kept["step_s"]),
        f"{kept['cold_s']:.1f} s",
        document["environment"]["commit"],
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
