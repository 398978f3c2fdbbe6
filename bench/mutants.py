"""Mutants: small faults drawn in the code, each of which the tests should catch.

    pip install cosmic-ray
    python -m bench.mutants draw --seed 26 --each 10 -o bench/mutants.json
    python -m bench.mutants run bench/mutants.json

`draw` takes cosmic-ray's list of mutations, first a place in the code and then one of the operators
that change it, both at random, in functions and outside annotations. `run` takes the tests that
pass on the tree as it is. It copies the tree, applies a mutant, and runs first the group's own
tests and then the others until one fails; the name of that test goes to the file. The tests of
kernels see kernels alone. A mutant that changes nothing that can be seen gets a reason by hand
(`equivalent`), and is not run.
"""

import argparse
import ast
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from random import Random
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PLANNER: Final = ("tvdnn/planner", "tvdnn/planner/policies", "tvdnn/memory")
KERNELS_TESTS: Final = "tests/kernels"
# the folders of each group, and the tests that are run first
GROUPS: Final = {
    "kernels": (("kernels", "kernels/language"), (KERNELS_TESTS,)),
    "ops": (
        ("tvdnn/ops",),
        ("tests/engine/test_trainer.py", "tests/models/test_zoo.py", "tests/ops/test_forks.py"),
    ),
    "trace": (
        ("tvdnn", "tvdnn/trace"),
        ("tests/trace/test_trace.py", "tests/engine/test_virtualize.py"),
    ),
    "planner": (PLANNER, ("tests/planner/test_schedules.py", "tests/placement/test_search.py")),
}
NO_TRACE: Final = (
    "__init__",
    "__main__",
    "collection",
    "data",
    "draws",
    "errors",
    "optim",
    "units",
)
DEAR: Final = (f"{KERNELS_TESTS}/test_compile.py",)  # 250 CPU s: run last
LIMIT_S: Final = 3600  # of the tests of one mutant
NO_TESTS: Final = 5  # pytest's answer where none were chosen
CONTEXT: Final = 3  # lines above and below by which a mutant finds its place
SEEN: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
Spec = tuple[str, str, int, int, int]  # file, operator, occurrence, line, column


@dataclass(slots=True)
class Mutant:
    """A change of a few lines. `caught` names the first test that failed, "" where none did."""

    group: str
    file: str
    function: str
    operator: str
    above: list[str]
    before: list[str]
    after: list[str]
    below: list[str]
    caught: str | None = None
    equivalent: str = ""  # why no test can see it


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--each", type=int, default=10, help="mutants of each group")
    drawing.add_argument("-o", "--output", type=Path, required=True)
    drawing.set_defaults(run=draw)
    running = commands.add_parser("run")
    running.add_argument("mutants", type=Path)
    running.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    running.add_argument("--processes", default="auto", help="of the tests of one")
    running.add_argument("--again", action="store_true", help="those that were run already too")
    running.set_defaults(run=run)
    options = parser.parse_args()
    options.run(options)


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
    folders, _ = GROUPS[group]
    return [
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in sorted((ROOT / folder).glob("*.py"))
        if folder != "tvdnn" or path.stem not in NO_TRACE
    ]


def specs_of(files: list[str], tree: Path) -> list[Spec]:
    """cosmic-ray's mutations of the files, those in functions and outside annotations."""
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


def run(options: argparse.Namespace) -> None:
    """Run the tests on every mutant that has no result, and write which test caught it."""
    held: dict[str, Any] = json.loads(options.mutants.read_text())
    mutants = [Mutant(**each) for each in held.pop("mutants")]
    asked = [
        each for each in mutants if not each.equivalent and (options.again or each.caught is None)
    ]
    failing = failing_tests()
    print(*(f"fails without a mutant: {name}" for name in failing), sep="\n", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {pool.submit(catching_test, m, options.processes, failing): m for m in asked}
        for done in as_completed(runs):
            mutant = runs[done]
            mutant.caught = done.result()
            print(f"{mutant.file} {mutant.function}: {mutant.caught or 'NOT CAUGHT'}", flush=True)
            write(options.mutants, held, mutants)
    sys.exit(any(not each.caught for each in asked))


def failing_tests() -> list[str]:
    """The tests that fail on the tree as it is."""
    with tempfile.TemporaryDirectory() as place:
        code, text = tested(copied(Path(place) / "tree"), "auto", "tests")
    if code is None:
        raise RuntimeError(f"without a mutant the tests had no end within {LIMIT_S} s")
    return sorted(set(SEEN.findall(text)))


def catching_test(mutant: Mutant, processes: str, failing: Sequence[str]) -> str:
    """The first test that fails on the mutant, but those failing anyway; "" where none does."""
    known = [f"--deselect={name}" for name in failing]
    with tempfile.TemporaryDirectory() as place:
        tree = copied(Path(place) / "tree")
        apply(mutant, tree)
        for tests in phases(mutant):
            code, text = tested(tree, processes, "-x", *known, *tests)
            if code is None:
                return f"no end within {LIMIT_S} s"
            if code not in (0, NO_TESTS):
                seen = SEEN.search(text)
                return seen[1] if seen else text[-400:]
    return ""


def phases(mutant: Mutant) -> Iterator[Sequence[str]]:
    """Tests to run one after the other: those that name the file first, those of the group, all."""
    named = re.compile(rf"^(?:from|import) .*\b{Path(mutant.file).stem}\b", re.MULTILINE)
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    near = [path.relative_to(ROOT).as_posix() for path in files if named.search(path.read_text())]
    near = [name for name in near if name not in DEAR]
    if near:
        yield near
    first = [name for name in GROUPS[mutant.group][1] if name not in near]
    if first:
        yield [*first, *ignored((*near, *DEAR))]
    if mutant.group == "kernels":
        yield DEAR
    yield ["tests", *ignored((*near, *first, KERNELS_TESTS))]


def ignored(names: Sequence[str]) -> list[str]:
    return [f"--ignore={name}" for name in names]


def tested(tree: Path, processes: str, *arguments: str) -> tuple[int | None, str]:
    """pytest's exit status and output on a tree, run by so many processes without a GPU.

    Where it has no end within the limit, there is no status, and its workers end with it.
    """
    environment = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-n", processes, *arguments],
        cwd=tree,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return None, text
    return process.returncode, text


def apply(mutant: Mutant, tree: Path) -> None:
    """Change the file of `tree` that holds the mutant's lines, wherever they have moved to."""
    old = "\n".join([*mutant.above, *mutant.before, *mutant.below])
    new = "\n".join([*mutant.above, *mutant.after, *mutant.below])
    texts = {path: path.read_text() for path in files_in(tree)}
    counts = {path: text.count(old) for path, text in texts.items()}
    if sum(counts.values()) != 1:
        raise ValueError(
            f"the lines of {mutant.file} {mutant.function} stand in {sum(counts.values())} places; "
            "write where they stand now into the file of mutants"
        )
    path = next(path for path, count in counts.items() if count)
    path.write_text(texts[path].replace(old, new))


def files_in(tree: Path) -> Iterator[Path]:
    for folder in ("kernels", "tvdnn"):
        yield from (tree / folder).rglob("*.py")


def copied(tree: Path) -> Path:
    """A copy of the checkout without what is generated."""
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / ".ci", tree / ".ci")
    return tree


def write(path: Path, head: dict[str, Any], mutants: list[Mutant]) -> None:
    path.write_text(json.dumps(head | {"mutants": [asdict(m) for m in mutants]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
