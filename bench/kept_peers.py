"""Rows of torch that were faster when they were measured before, with the same versions.

Where launches are short, the host decides how long torch's steps take: one machine took 25.3 ms for
torch eager's of FCN-ResNet-50(16), another 16.0 (2026-11). Rows of ours stand beside the faster.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

SAME: Final = 1.03  # times as long: a measurement that agrees stays beside those of its run
VERSIONS: Final = ("gpu", "torch")
CASE: Final = ("net", "batch", "image_size", "dtype", "policy")

Row = Mapping[str, Any]


def with_faster_peers(document: Row, before: Row) -> dict[str, Any]:
    """A document of results with torch's rows of another one where those were faster."""
    old, new = before["environment"], document["environment"]
    if any(old.get(name) != new.get(name) for name in VERSIONS):
        return dict(document)
    rows = [_faster(row, before["rows"]) for row in document["rows"]]
    keep = next((row["step_s"] for row in rows if row.get("policy") == "keep"), None)
    for row in rows:
        if _is_torchs(row) and keep and row.get("slowdown"):
            row["slowdown"] = row["step_s"] / keep
    return {**document, "rows": rows}


def _faster(row: Row, before: Sequence[Row]) -> dict[str, Any]:
    """The row, or one of the same case whose step took clearly less time."""
    if not _is_torchs(row) or not row.get("step_s"):
        return dict(row)
    alike = [
        each
        for each in before
        if all(each.get(name) == row.get(name) for name in CASE) and each.get("step_s")
    ]
    best = min(alike, key=lambda each: float(each["step_s"]), default=row)
    return dict(best if best["step_s"] * SAME < row["step_s"] else row)


def _is_torchs(row: Row) -> bool:
    return str(row.get("policy")).startswith("torch")
