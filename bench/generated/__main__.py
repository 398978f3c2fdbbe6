"""Random networks compared with torch in float64; what fails is shrunk and kept as a source file.

    python -m bench.generated --seeds 0:5000 --type fp32 --device cpu -o rows.jsonl

Networks run in children forked from this process, a block of seeds each. Rows are appended to the
output file as networks end; seeds that it has are not run again. The counts are printed, and
written beside the rows with the ending .json. On a GPU the children side by side are several
processes of one device, and maps are of few sizes, as kernels are compiled for each.

Which branches the networks reach is told by coverage.py, in one process (branches.py):

    python -m coverage run --branch --source tvdnn -m bench.generated --seeds 0:1000 --jobs 0
"""

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.command_line import parser_of
from bench.environment import environment, software
from bench.generated.compare import FAILED, Outcome, Setup
from bench.generated.draw import REFUSED, drawn_from_seed
from bench.generated.kinds import KINDS
from bench.generated.outcomes import DIED, Row, counts, row_of, rows_in, signature
from bench.generated.program import Program
from bench.generated.shrink import shrunk
from bench.generated.timed import compared

BLOCK = 20  # seeds of a child
KEPT_ALIKE = 3  # networks kept that fail in the same way


@dataclass(frozen=True, slots=True)
class Work:
    """Options of a run, and where its results go."""

    setup: Setup
    kinds: tuple[str, ...]
    output: Path
    faults: Path
    shrink_s: float
    few: bool
    refused: int


def main() -> None:
    options = _options()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    setup = Setup(options.type, options.device)
    few = options.few or options.device != "cpu"
    places = (options.output, options.faults, options.shrink)
    work = Work(setup, tuple(options.kinds), *places, few, options.refused)
    first, _, last = options.seeds.partition(":")
    done = {row.seed for row in rows_in(work.output)}
    seeds = [seed for seed in range(int(first), int(last)) if seed not in done]
    if options.jobs:
        _run_blocks(work, seeds, options.jobs, options.block)
    for seed in () if options.jobs else seeds:
        _run_seed(work, seed)
    about = software() if work.setup.device == "cpu" else environment()
    found = counts(row for row in rows_in(work.output) if int(first) <= row.seed < int(last))
    document = {"command": sys.argv[1:], "environment": about} | found
    work.output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:end")
    parser.add_argument("--type", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=(),
        choices=sorted(KINDS),
        metavar="KIND",
        help="draw these kinds alone",
    )
    parser.add_argument("--refused", type=int, default=REFUSED, help="percent that is refused")
    parser.add_argument("--few", action="store_true", help="few sizes; as on GPUs")
    parser.add_argument("--jobs", type=int, default=1, help="children side by side; 0: none")
    parser.add_argument("--block", type=int, default=BLOCK, help="seeds of a child")
    parser.add_argument("--shrink", type=float, default=30, help="seconds to shrink a network")
    parser.add_argument("--faults", type=Path, default=Path("faults"), help="folder of sources")
    parser.add_argument("-o", "--output", type=Path, default=Path("generated.jsonl"))
    return parser.parse_args()


def _run_blocks(work: Work, seeds: Sequence[int], jobs: int, size: int) -> None:
    """A child for each block. The seed at which a child dies is a fault, and the rest runs anew."""
    blocks = [list(seeds[at : at + size]) for at in range(0, len(seeds), size)]
    running: dict[int, list[int]] = {}
    while blocks or running:
        while blocks and len(running) < jobs:
            block = blocks.pop(0)
            running[_forked(work, block)] = block
        child, status = os.wait()
        block = running.pop(child)
        if status:
            done = {row.seed for row in rows_in(work.output)}
            left = [seed for seed in block if seed not in done]
            if left:
                dead = Row(left[0], FAILED, f"{DIED} ({status})", 0.0, {})
                _append(work.output, dead)
                blocks.insert(0, left[1:])


def _forked(work: Work, seeds: Sequence[int]) -> int:
    """The process id of a child that runs these seeds."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for seed in seeds:
            _run_seed(work, seed)
        status = 0
    except BaseException:  # noqa: BLE001 (a child says why it ends)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _run_seed(work: Work, seed: int) -> None:
    begin = time.monotonic()
    program = drawn_from_seed(seed, work.kinds, few=work.few, refused=work.refused)
    outcome = compared(program, work.setup)
    seconds = time.monotonic() - begin
    row = row_of(seed, outcome, seconds)
    if outcome.is_fault and _alike(work, row) < KEPT_ALIKE:
        _keep(work, seed, program, outcome)
    _append(work.output, row)


def _alike(work: Work, row: Row) -> int:
    """How many networks failed in the same way before."""
    return sum((each.kind, each.why) == (row.kind, row.why) for each in rows_in(work.output))


def _keep(work: Work, seed: int, program: Program, outcome: Outcome) -> None:
    """Shrink a network that fails, and write its source with what is wrong."""
    wanted = (outcome.kind, signature(outcome))

    def fails(smaller: Program) -> bool:
        found = compared(smaller, work.setup)
        return (found.kind, signature(found)) == wanted

    least = shrunk(program, fails, seconds=work.shrink_s) if work.shrink_s else program
    found = compared(least, work.setup)
    about = [f"seed {seed}, {work.setup.dtype}: {found.kind}: {found.why}", *found.details[:12]]
    comment = "".join(f"# {line}\n" for text in about for line in text.splitlines())
    work.faults.mkdir(parents=True, exist_ok=True)
    text = comment + least.printed()
    (work.faults / f"{work.setup.dtype}-{seed}.py").write_text(text)
    print(f"\n{text}", flush=True)


def _append(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(row.printed() + "\n")


if __name__ == "__main__":
    main()
