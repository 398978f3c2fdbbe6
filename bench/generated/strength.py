"""The strength of the generator: how many fresh networks find a seeded fault.

    python -m bench.generated.strength --first 5000000 --most 1000

Of each fault in seeded.py a forked child has it and compares networks from the first seed on, until
one is wrong or fails that is right or refused without the fault. Rows go to the output file
after each fault; a fault that the file has as not found goes on behind the seeds tried.
"""

import argparse
import json
import multiprocessing
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from inspect import isclass, isfunction, unwrap
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from bench.command_line import parser_of
from bench.environment import software
from bench.generated.compare import FAILED, RIGHT, WRONG, Setup
from bench.generated.draw import drawn_from_seed
from bench.generated.outcomes import DIED, signature
from bench.generated.seeded import FAULTS, Fault
from bench.generated.timed import compared

ROOT = Path(__file__).parent.parent.parent
OUTPUT = ROOT / "bench/results/networks/strength.json"
LEAST = 10  # networks of which a fault shows that it leaves most right
SKIPPED = "skipped"
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Row:
    """A fault, and what the networks tried saw of it."""

    fault: str
    mended: bool
    file: str
    wrong: str
    tried: int
    compared: int  # networks tried that can meet the fault, at least LEAST where one found it
    right: int  # of these, networks that are right all the same
    seed: int | None = None  # of the network that found the fault
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one network. Its kind is SKIPPED where it cannot meet the fault."""

    seed: int
    kind: str
    why: str

    @property
    def is_fault(self) -> bool:
        return self.kind in (WRONG, FAILED)


def main() -> None:
    options = _options()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = _rows_in(options.output)
    for fault in FAULTS:
        before = rows.get(fault.name)
        found = before is not None and before.seed is not None
        if found or (options.faults and fault.name not in options.faults):
            continue
        rows[fault.name] = row = _searched(fault, before, options.first, options.most)
        _write(options.output, options.first, rows)
        print(
            f"{row.fault}: {row.tried} tried, {row.compared} compared, {row.right} right,"
            f" {row.seed}: {row.seen}",
            flush=True,
        )


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--first", type=int, default=5_000_000, help="the first seed")
    parser.add_argument("--most", type=int, default=1000, help="networks of a fault")
    parser.add_argument("--faults", nargs="*", default=(), help="these alone, by name")
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    return parser.parse_args()


def _rows_in(path: Path) -> dict[str, Row]:
    """The rows of a file by fault, without rows of faults that FAULTS no longer has."""
    if not path.exists():
        return {}
    names = {fault.name for fault in FAULTS}
    rows = (Row(**each) for each in json.loads(path.read_text())["rows"])
    return {row.fault: row for row in rows if row.fault in names}


def _write(path: Path, first: int, rows: dict[str, Row]) -> None:
    ordered = [asdict(rows[fault.name]) for fault in FAULTS if fault.name in rows]
    document = {"first_seed": first, "environment": software(), "rows": ordered}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _searched(fault: Fault, before: Row | None, first: int, most: int) -> Row:
    """Compare networks under a fault, from the first one not tried yet, until one finds it."""
    row = before or Row(
        fault.name, fault.mended, fault.file, fault.wrong, tried=0, compared=0, right=0
    )
    while row.tried < most:
        for result in _results(range(first + row.tried, first + most), fault):
            row = replace(
                row,
                tried=row.tried + 1,
                compared=row.compared + (result.kind != SKIPPED),
                right=row.right + (result.kind == RIGHT),
            )
            if row.seed is None and result.is_fault and not _fails_anyway(result.seed):
                row = replace(row, seed=result.seed, seen=f"{result.kind}: {result.why}")
            if row.seed is not None and row.compared >= LEAST:
                return row
    return row


def _fails_anyway(seed: int) -> bool:
    """Whether a network is wrong or fails without any fault."""
    return any(result.is_fault for result in _results([seed], None))


def _results(seeds: Sequence[int], fault: Fault | None) -> Iterator[Result]:
    """Results that a forked child sends, one a network, until it ends or dies."""
    ours, theirs = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_run, args=(seeds, fault, theirs), daemon=True)
    child.start()
    theirs.close()
    sent = 0
    try:
        while sent < len(seeds):
            result: Result = ours.recv()
            sent += 1
            yield result
    except EOFError:
        yield Result(seeds[sent], FAILED, DIED)
    finally:
        child.kill()
        child.join()


def _run(seeds: Sequence[int], fault: Fault | None, results: Connection) -> None:
    if fault is not None:
        seed_fault(fault)
    for seed in seeds:
        program = drawn_from_seed(seed)
        if fault is not None and not re.search(fault.needs, program.printed(), re.DOTALL):
            results.send(Result(seed, SKIPPED, ""))
            continue
        outcome = compared(program, Setup())
        results.send(Result(seed, outcome.kind, signature(outcome)))


def seed_fault(fault: Fault) -> None:
    """Give this process's functions of the fault's file the code that the changed text has."""
    for function, code in codes_with(fault):
        function.__code__ = code


def codes_with(fault: Fault) -> list[tuple[FunctionType, CodeType]]:
    """The functions that a fault changes, and their code with it.

    Raises ValueError where the fault's text does not stand in its file once, or is in no function.
    """
    path = ROOT / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: {fault.file} has its text {text.count(fault.old)} times")
    module = import_module(fault.file.removesuffix(".py").replace("/", "."))
    right, changed = (
        dict(_codes(compile(each, str(path), "exec")))
        for each in (text, text.replace(fault.old, fault.new))
    )
    # Before Python 3.12 a comprehension is a code of its own, which one of the two texts may lack.
    # The code of the function around it differs too, by its constants.
    shared = right.keys() & changed.keys()
    names = {name for name in shared if right[name].co_code != changed[name].co_code}
    names |= {name for name in shared if right[name].co_consts != changed[name].co_consts}
    functions = [each for each in _functions(module) if each.__qualname__ in names]
    if not functions:
        raise ValueError(f"{fault.name}: no function of {fault.file} differs")
    return [(each, changed[each.__qualname__]) for each in functions]


def _codes(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    """The codes of functions and classes inside a code, by qualified name."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            name = prefix + each.co_name
            yield name, each
            is_function = bool(each.co_flags & 1)  # CO_OPTIMIZED, which classes lack
            yield from _codes(each, f"{name}.<locals>." if is_function else f"{name}.")


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions that a module defines, its classes' among them."""
    held: list[Any] = list(vars(module).values())
    for value in vars(module).values():
        if isclass(value) and value.__module__ == module.__name__:
            held += vars(value).values()
    for value in held:
        function = unwrap(value) if callable(value) else value
        if isfunction(function) and function.__module__ == module.__name__:
            yield function


if __name__ == "__main__":
    main()
