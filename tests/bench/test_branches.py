"""Branches of a file that random networks miss, by names that survive an edit."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.generated import branches

SOURCE = """def whole(x):
    return x


def part(x):
    if x:
        return 1
    try:
        y = 2
    except KeyError:
        y = 3
        y += 1
    if not x:
        return y
    return 4


class Of:
    def parts(self):
        for each in ():
            if each:
                return each
"""


def region(lines: list[int], missing: list[int], branches: list[list[int]]) -> dict[str, object]:
    return {"executed_lines": lines, "missing_lines": missing, "missing_branches": branches}


FUNCTIONS = {
    "whole": region([], [2], []),
    "part": region([6, 8, 9, 13, 14], [7, 10, 11, 12, 15], [[6, 7], [13, 15]]),
    "Of.parts": region([20], [21, 22], [[20, 21], [21, 20], [21, 22]]),
    "": region([1, 5, 18, 19], [], []),
}
WANTED = {
    "whole()": 0,
    "part: if x: -> return 1": 1,
    "part: if not x: -> return 4": 1,
    "part: except KeyError:": 0,
    "Of.parts: for each in (): -> if each:": 3,
}


def report(folder: Path, reasons: dict[str, str]) -> list[str]:
    """Arguments for the command: a report on one file, and reasons for missed branches."""
    summary = {"num_branches": 8, "covered_branches": 3}
    about = {"functions": FUNCTIONS, "summary": summary}
    found = {"files": {"tvdnn/ops/one.py": about, "tvdnn/planner/other.py": about}}
    (folder / "coverage.json").write_text(json.dumps(found))
    (folder / "reasons.json").write_text(json.dumps({"tvdnn/ops/one.py": reasons}))
    (folder / "tvdnn/ops").mkdir(parents=True)
    (folder / "tvdnn/ops/one.py").write_text(SOURCE)
    run = {"command": ["--seeds", "0:9", "-o", "rows.jsonl"], "environment": {"torch": "2.15"}}
    counts = {"networks": 9, "outcomes": {"right": 9}, "reasons": {}}
    (folder / "rows.json").write_text(json.dumps(run | counts))
    names = ("coverage.json", "--reasons", "reasons.json", "-o", "out.json", "--run", "rows.json")
    return ["branches", *(each if each[0] == "-" else str(folder / each) for each in names)]


def test_what_is_missed_is_named_by_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", report(tmp_path, dict.fromkeys(WANTED, "a reason")))
    monkeypatch.setattr(branches, "LEAST", 37.0)
    with pytest.raises(SystemExit) as ended:
        branches.main()
    assert ended.value.code == 0
    out = json.loads((tmp_path / "out.json").read_text())
    assert {row["what"]: row["branches"] for row in out["missed"]} == WANTED
    assert (out["branches"], out["reached"], out["percent"]) == (8, 3, 37.5)
    (run,) = out["runs"]
    assert run["command"] == "python -m bench.generated --seeds 0:9"
    assert (run["networks"], run["outcomes"]) == (9, {"right": 9})
    assert list(out["files"]) == ["tvdnn/ops/one.py"]


@pytest.mark.parametrize("without", [*WANTED, None])
def test_it_fails_without_a_reason_or_with_too_few_branches(
    without: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reasons = {name: "a reason" for name in WANTED if name != without}
    monkeypatch.setattr(branches, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", report(tmp_path, reasons))
    monkeypatch.setattr(branches, "LEAST", 95.0 if without is None else 0.0)
    with pytest.raises(SystemExit) as ended:
        branches.main()
    assert ended.value.code == 1
    assert capsys.readouterr().out.count("NO REASON") == (without is not None)


def test_a_reason_of_what_is_reached_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(branches, "ROOT", tmp_path)
    reasons = dict.fromkeys((*WANTED, "gone()"), "a reason")
    monkeypatch.setattr("sys.argv", report(tmp_path, reasons))
    with pytest.raises(SystemExit):
        branches.main()
    assert "tvdnn/ops/one.py: gone(): is reached now" in capsys.readouterr().out


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions within a node, by the names that coverage gives them."""
    for child in ast.iter_child_nodes(node):
        name = child.name if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else ""
        if isinstance(child, ast.FunctionDef):
            yield prefix + name, child
        yield from functions(child, f"{prefix}{name}." if name else prefix)


def names_lines_of(what: str, text: str) -> bool:
    """Whether a branch, a line or a function is named by text that is there."""
    title, _, rest = what.partition(": ")
    found = dict(functions(ast.parse(text)))
    name = re.sub(r"@\d+$", "", title.removesuffix("()"))  # one of several of a name
    if name not in found or not rest:
        return name in found
    node = found[name]
    lines = [line.strip() for line in text.splitlines()[node.lineno - 1 : node.end_lineno]]
    ends = (*lines, branches.EXIT)
    return any(rest in (start, *(f"{start} -> {end}" for end in ends)) for start in lines)


def test_reasons_are_of_lines_that_are_there() -> None:
    assert names_lines_of("part: if x: -> return 1", SOURCE)
    assert not names_lines_of("part: if x: -> return 2", SOURCE)
    assert not names_lines_of("Of.part()", SOURCE)
    gone = [
        f"{file}: {what}"
        for file, reasons in json.loads(branches.REASONS.read_text()).items()
        for what in reasons
        if not names_lines_of(what, (branches.ROOT / file).read_text())
    ]
    assert gone == []
