"""Results files: the rows of whole training steps and of plans, as they lie in bench/results.

Each file holds {"title", "note", "environment", "rows"}. A row has the keys of
`tvdnn.report.rows.Row` and any of those that the columns of bench/columns.py read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tvdnn.report.rows import Row

KEEP = "keep"
PEERS = "torch"  # the names of torch's own training begin with this word
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a results file: the keys that every row has, and all keys."""

    row: Row
    values: Mapping[str, Any]
    commit: str

    @property
    def is_peer(self) -> bool:
        return self.row.policy.startswith(PEERS)

    @property
    def ran(self) -> bool:
        return bool(self.row.step_s) and not self.row.infeasible

    @property
    def allocated_nbytes(self) -> int | None:
        """Most bytes by torch's own counter, the caller's x, y and outputs included."""
        return self.values.get("max_memory_allocated", self.row.peak_bytes)


@dataclass(frozen=True, slots=True)
class Result:
    """A results file."""

    name: str  # the file's, without its suffix
    title: str
    note: str
    environment: Mapping[str, Any]
    entries: tuple[Entry, ...]

    @property
    def machine(self) -> str:
        """GPU and versions, without the commit."""
        return machine(self.environment)

    @property
    def commits(self) -> tuple[str, ...]:
        """The commits of the rows, each once, in the order of the rows."""
        return tuple(dict.fromkeys(entry.commit for entry in self.entries))


def machine(environment: Mapping[str, Any]) -> str:
    """GPU and versions of a run, without its commit."""
    found = {key: value for key, value in environment.items() if value and key != "commit"}
    return ", ".join(f"{key} {value}" for key, value in found.items())


def read(folder: Path) -> tuple[Result, ...]:
    """The results in a folder, in the order of their files' names."""
    paths = sorted(folder.glob("*.json"))
    return tuple(_result(path.stem, json.loads(path.read_text())) for path in paths)


def _result(name: str, document: Mapping[str, Any]) -> Result:
    environment = document.get("environment") or {}
    commit = environment.get("commit") or UNKNOWN
    entries = tuple(
        Entry(_row(values), values, values.get("commit") or commit) for values in document["rows"]
    )
    return Result(name, document["title"], document.get("note") or "", environment, entries)


def _row(values: Mapping[str, Any]) -> Row:
    """The row in `values`. A peer's row lacks fields, which are None."""
    return Row(**{field.name: values.get(field.name) for field in fields(Row)})
