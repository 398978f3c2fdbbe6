"""Mutants: small faults drawn in the code, each of which the tests should catch.

    pip install cosmic-ray
    python -m bench.mutants draw --seed 26 --each 10 -o bench/mutants.json
    python -m bench.mutants run bench/mutants.json --jobs 16

`draw` takes cosmic-ray's list of mutations, first a place in the code and then one of the operators
that change it, both at random, in functions and outside annotations. `run` first runs all tests on
the tree as it is and records which of them enter a mutant's function (bench/reaching_tests.py,
Python 3.12). It copies the tree, applies a mutant, and runs the tests that passed and enter the
function, until one fails that also fails by itself; the name of that test goes to the file. Tests
in files named as the mutant's module, or that import it, come first. Tests that start processes
come last, as functions entered there are not recorded: those of kernels for mutants of kernels, the
others for other mutants. A mutant that changes nothing that can be seen gets a reason by hand
(`equivalent`), and is not run. Of the forty drawn at f0bdd2f tests caught thirty there, five change
nothing, and five were not caught. The same thirty were caught at c4662a7, by the tests in the file.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

from bench.command_line import parser_of
from bench.drawing_mutants import ROOT, Mutant, copied, draw, function_at, write
from bench.reaching_tests import Record, file_of

KERNELS_TESTS: Final = "tests/kernels/"
FIRST_S: Final = 10.0  # of the tests of a mutant that the first process runs
PIECE_S: Final = 80.0  # of the tests that each later process runs; it takes 5 s to start
LIMIT_S: Final = 3600.0  # of the tests without a mutant
SLOWER: Final = 3.0  # how many times longer than without a mutant tests may take
NO_TESTS: Final = 5  # pytest's answer where none were chosen


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--each", type=int, default=10, help="mutants of each group")
    drawing.add_argument("-o", "--output", type=Path, required=True)
    drawing.set_defaults(run=draw)
    running = commands.add_parser("run")
    running.add_argument("mutants", type=Path)
    running.add_argument("--jobs", type=int, default=1, help="processes of tests")
    running.add_argument("--limit", type=float, default=120.0, help="seconds beyond those expected")
    running.add_argument("--record", type=Path, help="tests without a mutant: made where missing")
    running.add_argument("--again", action="store_true", help="those that were run already too")
    running.set_defaults(run=run)
    options = parser.parse_args()
    options.run(options)


def run(options: argparse.Namespace) -> None:
    """Run the tests on every mutant that has no result, and write which test caught it."""
    held: dict[str, Any] = json.loads(options.mutants.read_text())
    mutants = [Mutant(**each) for each in held.pop("mutants")]
    asked = [
        each for each in mutants if not each.equivalent and (options.again or each.caught is None)
    ]
    with tempfile.TemporaryDirectory() as place:
        records = recorded(options.record or Path(place) / "record.json", asked)
        for name, record in records.items():
            if record["failed"]:
                print(f"fails without a mutant: {name}", flush=True)
        for mutant in run_pieces(asked, records, Path(place), options.jobs, options.limit):
            print(f"{mutant.file} {mutant.function}: {mutant.caught or 'NOT CAUGHT'}", flush=True)
            write(options.mutants, held, mutants)
    sys.exit(any(not each.caught for each in asked))


def recorded(path: Path, mutants: list[Mutant]) -> dict[str, Record]:
    """A record of every test on the unchanged tree, read from the file if there is one."""
    if not path.exists():
        with tempfile.TemporaryDirectory() as place:
            tree = copied(Path(place) / "tree")
            functions = sorted({function_of(mutant, tree) for mutant in mutants})
            made, listed = Path(place) / "record.json", Path(place) / "functions.json"
            listed.write_text(json.dumps(functions))
            code, text = tested(tree, LIMIT_S, made, f"--functions={listed}", "tests")
            if not made.exists():
                raise RuntimeError(f"without a mutant the tests ended with {code}: {text[-400:]}")
            shutil.copy(made, path)
    records: dict[str, Record] = json.loads(path.read_text())
    return records


def run_pieces(
    mutants: list[Mutant], records: dict[str, Record], place: Path, jobs: int, limit_s: float
) -> Iterator[Mutant]:
    """Run the first tests of all mutants, then the next ones; yields each mutant that has ended."""
    pieces: list[tuple[int, int, list[str]]] = []
    left: list[int] = []
    for number, mutant in enumerate(mutants):
        tree = copied(place / str(number))
        names = tests_of(mutant, function_of(mutant, tree), records)
        apply(mutant, tree)
        cut = list(cut_up(names, records))
        pieces += [(turn, number, piece) for turn, piece in enumerate(cut)]
        left.append(len(cut))
        mutant.caught = None if cut else ""
        if not cut:
            yield mutant

    def run_piece(piece: tuple[int, int, list[str]]) -> str:
        turn, number, names = piece
        if mutants[number].caught is not None:
            return ""
        most_s = limit_s + SLOWER * sum(records[name]["seconds"] for name in names)
        return catching_test(place / str(number), place / f"{number} {turn}", names, most_s)

    with ThreadPoolExecutor(jobs) as pool:
        runs = {pool.submit(run_piece, piece): piece[1] for piece in sorted(pieces)}
        for done in as_completed(runs):
            number = runs[done]
            left[number] -= 1
            if mutants[number].caught is None and (done.result() or left[number] == 0):
                mutants[number].caught = done.result()
                yield mutants[number]


def tests_of(mutant: Mutant, function: str, records: dict[str, Record]) -> list[str]:
    """The tests that pass without the mutant and may see it, in the order to run them."""
    passed = {name: record for name, record in records.items() if not record["failed"]}
    files = {file_of(name) for name in passed if function in passed[name]["of_file"]}
    reaching = [
        name for name, each in passed.items() if function in each["own"] or file_of(name) in files
    ]
    stem = Path(function.partition(" ")[0]).stem
    imports = re.compile(rf"^(?:from|import) .*\b{stem}\b", re.MULTILINE)
    near = {
        name
        for name in map(file_of, reaching)
        if stem in name or imports.search((ROOT / name).read_text())
    }
    reaching.sort(key=lambda name: (file_of(name) not in near, file_of(name)))
    starting = [
        name
        for name, each in passed.items()
        if each["starts_python"] and name.startswith(KERNELS_TESTS) == (mutant.group == "kernels")
    ]
    return list(dict.fromkeys([*reaching, *starting]))


def cut_up(names: list[str], records: dict[str, Record]) -> Iterator[list[str]]:
    """The tests in pieces, of which each takes twice as long as the one before, up to `PIECE_S`."""
    piece: list[str] = []
    seconds, most = 0.0, FIRST_S
    for name in names:
        piece.append(name)
        seconds += records[name]["seconds"]
        if seconds >= most:
            yield piece
            piece, seconds, most = [], 0.0, min(2 * most, PIECE_S)
    if piece:
        yield piece


def catching_test(tree: Path, place: Path, names: list[str], most_s: float) -> str:
    """The first of the tests that fails on a tree, also by itself; "" where none does."""
    place.mkdir()
    while names:
        found = failing_test(tree, place, names, most_s)
        if found not in names or failing_test(tree, place, [found], most_s):
            return found
        names = names[names.index(found) + 1 :]
    return ""


def failing_test(tree: Path, place: Path, names: list[str], most_s: float) -> str:
    """The first of the tests that fails, or what pytest says where it names none; "" for none."""
    listed, made = place / "tests.json", place / "record.json"
    listed.write_text(json.dumps(names))
    made.unlink(missing_ok=True)
    files = dict.fromkeys(map(file_of, names))
    code, text = tested(tree, most_s, made, f"--tests={listed}", "-x", "-n", "0", *files)
    if code is None:
        return f"no end within {most_s:.0f} s"
    if code in (0, NO_TESTS):
        return ""
    records: dict[str, Record] = json.loads(made.read_text()) if made.exists() else {}
    return next((name for name, each in records.items() if each["failed"]), text[-400:])


def tested(tree: Path, most_s: float, record: Path, *arguments: str) -> tuple[int | None, str]:
    """pytest's exit status and output on a tree, without a GPU.

    Where it has no end within the seconds, there is no status, and its workers end with it.
    """
    environment = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    plugin = ["-p", "bench.reaching_tests", f"--record={record}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", *plugin, *arguments],
        cwd=tree,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=most_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return None, text
    return process.returncode, text


def function_of(mutant: Mutant, tree: Path) -> str:
    """The function as "FILE NAME" that holds the mutant's lines in `tree`."""
    path, old = place_of(mutant, tree)
    source = path.read_text()
    line = source[: source.index(old)].count("\n") + len(mutant.above) + 1
    return f"{path.relative_to(tree).as_posix()} {function_at(source, line)}"


def apply(mutant: Mutant, tree: Path) -> None:
    """Change the mutant's lines in `tree`."""
    path, old = place_of(mutant, tree)
    new = "\n".join([*mutant.above, *mutant.after, *mutant.below])
    path.write_text(path.read_text().replace(old, new))


def place_of(mutant: Mutant, tree: Path) -> tuple[Path, str]:
    """The mutant's lines, and the file of `tree` that holds them wherever they have moved to."""
    old = "\n".join([*mutant.above, *mutant.before, *mutant.below])
    counts = {path: path.read_text().count(old) for path in files_in(tree)}
    if sum(counts.values()) != 1:
        raise ValueError(
            f"the lines of {mutant.file} {mutant.function} stand in {sum(counts.values())} places; "
            "write where they stand now into the file of mutants"
        )
    return next(path for path, count in counts.items() if count), old


def files_in(tree: Path) -> Iterator[Path]:
    for folder in ("kernels", "tvdnn"):
        yield from (tree / folder).rglob("*.py")


if __name__ == "__main__":
    main()
