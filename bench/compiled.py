"""Every variant of every kernel, compiled and assembled without a GPU.

    python -m bench.compiled -o bench/results/compiled/triton-3.9.json

For compute capability 9.0 all that the cases of bench/cases ask for, candidates of tuning and the
launches of training steps; for the others each launcher's kernels once. The tests compile
fewer, up to shared memory, and assemble one of each kernel for 9.0. A row is a
kernel on an architecture, with the most that a variant takes. Exits with 1 where one does not
compile or takes more than it may (limits.py). About 15 minutes of a core; a process to a core.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import triton

from bench.command_line import parser_of
from bench.environment import software
from bench.offline.compiler import HOPPER, SHARED_NBYTES, Report, reports_of
from bench.offline.limits import faults

HOPPER_PARTS: Final = 6
CASES: Final = "bench.offline.cases"
MORE: Final = ("bench.offline.steps", "bench.offline.candidates")  # for Hopper
MOST: Final = ("shared_nbytes", "registers", "spilled_nbytes")
Job = tuple[int, tuple[int, int]]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    jobs: list[Job] = [(HOPPER, (part, HOPPER_PARTS)) for part in range(HOPPER_PARTS)]
    jobs += [(arch, (0, 1)) for arch in SHARED_NBYTES if arch != HOPPER]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(_compiled, jobs))
    reports = [each for made, _ in found for each in made]
    failed = [error for _, error in found if error]
    failed += [f"{each.case}: {each.kernel} {fault}" for each in reports for fault in faults(each)]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text_of(rows(reports)))
    print(f"{len(reports)} variants", *failed, sep="\n", flush=True)
    sys.exit(1 if failed else 0)


def _compiled(job: Job) -> tuple[list[Report], str]:
    """The reports of a job, and why there are none."""
    arch, part = job
    try:
        found = reports_of(modules(arch), [arch], part, every=True)
    except RuntimeError as error:
        return [], str(error)
    print(f"sm_{arch} {part}: {len(found)} variants", flush=True)
    return found, ""


def modules(arch: int) -> list[str]:
    """The modules of cases."""
    return [CASES, *(MORE if arch == HOPPER else ())]


def rows(reports: Sequence[Report]) -> Iterator[dict[str, Any]]:
    """A row of every kernel and architecture."""
    groups: dict[tuple[str, int], list[Report]] = defaultdict(list)
    for each in reports:
        groups[each.kernel, each.arch].append(each)
    for (kernel, arch), group in sorted(groups.items()):
        most = {name: max(getattr(each, name) or 0 for each in group) for name in MOST}
        launchers = sorted({each.launcher for each in group})
        yield {"kernel": kernel, "arch": arch, "variants": len(group), **most} | {
            "launchers": launchers
        }


def text_of(found: Iterator[dict[str, Any]]) -> str:
    """The document as JSON, a row a line."""
    head = {
        "title": "Kernels compiled without a GPU",
        "note": "The most that a variant takes: bytes of shared memory of a program, registers of a"
        " thread, bytes of registers spilled.",
        "environment": {"triton": triton.__version__, **software()},
    }
    lines = ",\n".join(f"  {json.dumps(row)}" for row in found)
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    main()
