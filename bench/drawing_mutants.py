"""Draws mutants from cosmic-ray's list of mutations."""

import argparse
import ast
import json
import shutil
import sqlite3
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from random import Random
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
GROUPS: Final = {  # folders
    "kernels": ("kernels",),
    "ops": ("tvdnn/ops",),
    "trace": ("tvdnn/trace",),
    "planner": ("tvdnn/planner", "tvdnn/placement"),
}
CONTEXT: Final = 3  # lines above and below by which a mutant finds its place
Spec = tuple[str, str, int, int, int]  # file, operator, occurrence, line, column


@dataclass(slots=True)
class Mutant:
    """A change of a few lines."""

    group: str
    file: str
    function: str
    operator: str
    above: list[str]
    before: list[str]
    after: list[str]
    below: list[str]
    caught: str | None = None  # the first test that failed, "" where none did
    equivalent: str = ""  # why no test can see it


def draw(options: argparse.Namespace) -> None:
    """Write `each` mutants of every group."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        tree = copied(Path(place) / "tree")
        for group in GROUPS:
            drawn = drawn_from(group, tree, Random(f"{options.seed} {group}"))
            found += [next(drawn) for _ in range(options.each)]
    version = subprocess.run(
        ["cosmic-ray", "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    write(options.output, {"seed": options.seed, "tool": version}, found)


def drawn_from(group: str, tree: Path, random: Random) -> Iterator[Mutant]:
    """Mutants of a group without end: a place, then one of its operators."""
    places: dict[tuple[str, int, int], list[Spec]] = defaultdict(list)
    for spec in specs_of(files_of(group), tree):
        places[spec[0], spec[3], spec[4]].append(spec)
    order = sorted(places)
    random.shuffle(order)
    for place in order:
        file, operator, occurrence, line, _ = random.choice(sorted(places[place]))
        path = tree / file
        old = path.read_text()
        command = ["cosmic-ray", "apply", file, operator, str(occurrence)]
        subprocess.run(command, cwd=tree, check=True, capture_output=True)
        new = path.read_text()
        path.write_text(old)
        if is_python(new):
            yield mutant_of(group, file, function_at(old, line), operator, old, new)


def is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def mutant_of(group: str, file: str, function: str, operator: str, old: str, new: str) -> Mutant:
    was, now = old.splitlines(), new.splitlines()
    changes = [each for each in SequenceMatcher(None, was, now).get_opcodes() if each[0] != "equal"]
    (_, start, stop, first, last), *more = changes
    assert not more, (file, operator)
    above, below = was[max(start - CONTEXT, 0) : start], was[stop : stop + CONTEXT]
    return Mutant(group, file, function, operator, above, was[start:stop], now[first:last], below)


def files_of(group: str) -> list[str]:
    return [
        path.relative_to(ROOT).as_posix()
        for folder in GROUPS[group]
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def specs_of(files: list[str], tree: Path) -> list[Spec]:
    """cosmic-ray's mutations of the files that lie in functions and outside annotations."""
    settings = ["[cosmic-ray]", f"module-path = {json.dumps(files)}", "timeout = 1.0"]
    settings += ["excluded-modules = []", 'test-command = "true"']
    settings += ["[cosmic-ray.distributor]", 'name = "local"']
    (tree / "mutants.toml").write_text("\n".join(settings))
    command = ["cosmic-ray", "init", "mutants.toml", "mutants.sqlite", "--force"]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    with sqlite3.connect(tree / "mutants.sqlite") as database:
        rows = database.execute(
            "select module_path, operator_name, occurrence, start_pos_row, start_pos_col"
            " from mutation_specs"
        ).fetchall()
    inside = {file: places_in(ast.parse((tree / file).read_text())) for file in files}
    return [row for row in rows if (row[3], row[4]) in inside[row[0]]]


def places_in(tree: ast.Module) -> set[tuple[int, int]]:
    """Lines and columns of what functions do: neither their annotations nor their decorators."""
    found = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                found |= set(_places(statement))
    return found


def _places(node: ast.AST) -> Iterator[tuple[int, int]]:
    if isinstance(node, (ast.expr, ast.stmt)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        for line in range(node.lineno, node.end_lineno + 1):
            start = node.col_offset if line == node.lineno else 0
            stop = node.end_col_offset if line == node.end_lineno else 200
            yield from ((line, column) for column in range(start, stop))


def function_at(source: str, line: int) -> str:
    """The innermost function around a line."""
    functions = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)]
    around = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
    return max(around, key=lambda each: each.lineno).name


def copied(tree: Path) -> Path:
    """A copy of the checkout without generated files."""
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / ".ci", tree / ".ci")
    return tree


def write(path: Path, head: dict[str, Any], mutants: list[Mutant]) -> None:
    path.write_text(json.dumps(head | {"mutants": [asdict(m) for m in mutants]}, indent=1) + "\n")
