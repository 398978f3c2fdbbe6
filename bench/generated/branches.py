r"""Which branches random networks reach, and why they do not reach the others.

    python -m coverage run --branch -p --include "tvdnn/trace/*,tvdnn/graph/*,tvdnn/ops/*" \
        -m bench.generated --jobs 0 --shrink 0 --seeds 0:500 -o rows.jsonl
    python -m coverage combine
    python -m coverage json -o coverage.json
    python -m bench.generated.branches coverage.json --run rows.json

Coverage's report in JSON and a file of reasons become a table: the branches of each file of trace,
graph and ops, those reached, and all that is missed with its reason. What is missed is named
by its file, function and text, not by its line's number: a function that is never called, a branch
from a line that runs, or a line behind one that never ends as usual. What follows in the same
function from one of these has its reason. The command fails where a reason is missing.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.command_line import parser_of

ROOT = Path(__file__).parent.parent.parent
REASONS = ROOT / "bench/results/networks/missed.json"
OUTPUT = ROOT / "bench/results/networks/branches.json"
FILES = tuple(f"tvdnn/{folder}/*" for folder in ("trace", "graph", "ops"))
LEAST = 95.0  # percent of the branches
EXIT = "the end"  # where a branch leaves its function


@dataclass(frozen=True, slots=True)
class Missed:
    """A branch or line of a file that no network reached, and the reason if one is known."""

    file: str
    what: str
    branches: int
    lines: int
    reason: str | None


@dataclass(slots=True)
class _Region:
    """The lines of a function, or of a module outside functions, and whether each ran."""

    name: str
    lines: Mapping[int, bool]  # of each line whether it ran
    branches: Sequence[tuple[int, int]]  # that are missed
    text: Sequence[str]
    missed: dict[str, int] = field(default_factory=dict)

    def found(self) -> dict[str, int]:
        """The missed lines and jumps by name, and the number of branches that each stands for."""
        if self.name and self.lines and not any(self.lines.values()):
            return {f"{self.name}()": len(self.branches)}
        for start, end in self.branches:
            if self.lines.get(start, True):
                self._add(f"{self._text(start)} -> {self._text(end)}", 1)
        self._add_lines()
        consequences = len(self.branches) - sum(self.missed.values())
        if self.missed and consequences:
            self._add(next(iter(self.missed)), consequences)
        return self.missed

    def _add_lines(self) -> None:
        """Add missed lines that no branch leads to, such as a handler of a rare exception."""
        targets, before = {end for _, end in self.branches}, True
        for line, ran in sorted(self.lines.items()):
            if not ran and before and line not in targets:
                self._add(self._text(line), 0)
            before = ran

    def _add(self, what: str, branches: int) -> None:
        key = what if what.startswith(f"{self.name}: ") else f"{self.name}: {what}"
        self.missed[key] = self.missed.get(key, 0) + branches

    def _text(self, line: int) -> str:
        return EXIT if line < 0 else self.text[line - 1].strip()


def main() -> None:
    options = _options()
    report = json.loads(options.report.read_text())
    reasons = json.loads(options.reasons.read_text()) if options.reasons.exists() else {}
    files = {name: each for name, each in sorted(report["files"].items()) if _is_wanted(name)}
    missed = [each for name, about in files.items() for each in _missed(name, about, reasons)]
    runs = [_run(path) for path in options.run]
    document = {"runs": runs, **_counts(files), "missed": _rows(missed)}
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    _print(document, missed, reasons)
    bare = [each for each in missed if each.reason is None]
    sys.exit(1 if bare or document["percent"] < LEAST else 0)


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("report", type=Path, help="what `coverage json` writes")
    parser.add_argument("--reasons", type=Path, default=REASONS)
    about = "counts of a run that was measured, as the generator writes them beside its rows"
    parser.add_argument("--run", action="append", default=[], type=Path, help=about)
    parser.add_argument("-o", "--output", type=Path, help=f"as {OUTPUT.name}")
    return parser.parse_args()


def _run(path: Path) -> dict[str, Any]:
    """The command of a run, its environment, and the outcomes of its networks."""
    found = json.loads(path.read_text())
    command = re.sub(r" ?(-o|--faults) \S+", "", " ".join(found["command"]))
    about = {name: found[name] for name in ("environment", "networks", "outcomes")}
    return {"command": f"python -m bench.generated {command}"} | about


def _is_wanted(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in FILES)


def _missed(
    name: str, about: Mapping[str, Any], reasons: Mapping[str, Mapping[str, str]]
) -> Iterator[Missed]:
    text = (ROOT / name).read_text().splitlines()
    for function, region in about["functions"].items():
        lines = dict.fromkeys(region["executed_lines"], True)
        lines |= dict.fromkeys(region["missing_lines"], False)
        branches = [(start, end) for start, end in region["missing_branches"]]
        found = _Region(function, lines, branches, text).found()
        for number, (what, count) in enumerate(found.items()):
            reason = reasons.get(name, {}).get(what)
            yield Missed(name, what, count, 0 if number else len(region["missing_lines"]), reason)


def _counts(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The branches of each file and of all files, and how many of them are reached."""
    rows = {
        name: (about["summary"]["num_branches"], about["summary"]["covered_branches"])
        for name, about in files.items()
    }
    there, reached = (sum(row[place] for row in rows.values()) for place in (0, 1))
    return {
        "branches": there,
        "reached": reached,
        "percent": round(100 * reached / there, 2),
        "files": {name: {"branches": row[0], "reached": row[1]} for name, row in rows.items()},
    }


def _rows(missed: Sequence[Missed]) -> list[dict[str, Any]]:
    names = Missed.__dataclass_fields__
    return [{name: getattr(each, name) for name in names} for each in missed]


def _print(
    document: Mapping[str, Any],
    missed: Sequence[Missed],
    reasons: Mapping[str, Mapping[str, str]],
) -> None:
    for name, row in document["files"].items():
        print(f"{row['reached']:5} of {row['branches']:5}  {name}")
    print(f"{document['reached']} of {document['branches']} branches: {document['percent']}%")
    for each in missed:
        reason = each.reason or "NO REASON"
        print(f"{each.file}: {each.what} [{each.branches} branches, {each.lines} lines]: {reason}")
    known = {(each.file, each.what) for each in missed}
    for name, found in reasons.items():
        for what in (what for what in found if (name, what) not in known):
            print(f"{name}: {what}: is reached now")


if __name__ == "__main__":
    main()
