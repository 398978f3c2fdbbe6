"""The zoo's rows: where they lie, which are there already, and what follows from them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any, Final

from bench.zoo.networks import ANCHORS, NAMES

TORCH, TVDNN = "torch", "tvdnn"  # the names of files begin so; then comes the GPU's
EAGER, COMPILED, GRAPHED = "eager", "compile", "compile reduce-overhead"
TORCHS_WAYS: Final = (EAGER, COMPILED, GRAPHED)
AUTO, KEEP, HALF, VIRTUALIZED = "auto", "keep", "auto in half", "virtualize"
USUAL: Final = (AUTO, KEEP, HALF)
TVDNNS_WAYS: Final = (*USUAL, VIRTUALIZED)
AGREE: Final = 0.03  # of an anchor's step, when it is measured again
SLOW_S: Final = 180.0  # of a first step by torch.compile, which is ended then

Row = Mapping[str, Any]


class RowFile:
    """A file of rows, written with each row that comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []

    def add(self, row: Row) -> None:
        self.rows.append(row)
        document = {"title": "The zoo's networks", "rows": self.rows}
        self._path.write_text(json.dumps(document, indent=1) + "\n")


def of_gpu(name: str) -> str:
    """The GPU's name in names of files: "h100" of "NVIDIA H100 80GB HBM3"."""
    return name.removeprefix("NVIDIA ").split()[0].lower()


def release_of(row: Row) -> tuple[str, ...]:
    """What torch's steps depend on: its versions and the GPU."""
    about = row["environment"]
    return tuple(about[key] for key in ("torch", "triton", "cudnn", "gpu"))


def commit_of(row: Row) -> tuple[str, ...]:
    """What our steps depend on besides."""
    return (row["environment"]["commit"], *release_of(row))


def found(rows: Iterable[Row], net: str, way: str, dtype: str) -> Row | None:
    """The last row of a network, way and type, without those of anchors measured again."""
    asked = (net, way, dtype)
    mine = [row for row in rows if _key(row) == asked and "again_in" not in row]
    return mine[-1] if mine else None


def _key(row: Row) -> tuple[str, str, str]:
    return row["net"], row["way"], row["dtype"]


def fastest_compiled(rows: Sequence[Row], net: str, dtype: str) -> Row | None:
    """The row of torch.compile with the shorter step, where both of its ways are measured."""
    ran = [row for row in _compiled(rows, net, dtype) if row.get("step_s")]
    return min(ran, key=lambda row: row["step_s"], default=None)


def compiled_nbytes(rows: Sequence[Row], net: str, dtype: str) -> int | None:
    """The least memory in which torch.compile trains the network, by either of its ways."""
    peaks = (row.get("measured_peak_bytes") for row in _compiled(rows, net, dtype))
    return min((peak for peak in peaks if peak), default=None)


def _compiled(rows: Sequence[Row], net: str, dtype: str) -> list[Row]:
    """The rows of both of torch.compile's ways; none while one is not measured."""
    each = [found(rows, net, way, dtype) for way in (COMPILED, GRAPHED)]
    measured = [row for row in each if row is not None]
    return measured if len(measured) == len(each) else []


def anchors_to_measure(rows: Sequence[Row], dtype: str, run: str) -> Iterator[tuple[str, str]]:
    """The anchors' ways whose rows are of earlier runs and were not measured again in this one."""
    again = {_key(row) for row in rows if row.get("again_in") == run}
    for net, kept in _anchors(rows, dtype):
        if kept["run"] != run and _key(kept) not in again:
            yield net, kept["way"]


def agreements(rows: Sequence[Row], dtype: str, run: str) -> Iterator[tuple[Row, Row, bool]]:
    """Each anchor's kept row, the one measured again in this run, and whether they agree."""
    for _, kept in _anchors(rows, dtype):
        for row in rows:
            if row.get("again_in") == run and _key(row) == _key(kept):
                ratio = (row.get("step_s") or 0.0) / kept["step_s"]
                yield kept, row, abs(ratio - 1.0) <= AGREE


def _anchors(rows: Sequence[Row], dtype: str) -> Iterator[tuple[str, Row]]:
    """The anchors with their rows of eager and of torch.compile at its faster."""
    for net in ANCHORS:
        for row in (found(rows, net, EAGER, dtype), fastest_compiled(rows, net, dtype)):
            if row is not None and row.get("step_s"):
                yield net, row


def geometric_mean(values: Sequence[float]) -> float | None:
    """None of no values."""
    return exp(sum(map(log, values)) / len(values)) if values else None


def listed(rows: Iterable[Row]) -> list[str]:
    """The networks of the rows, in the order of the list."""
    named = {row["net"] for row in rows}
    return [net for net in NAMES if net in named]
