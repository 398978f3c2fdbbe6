"""Networks that others wrote, unchanged, beside torch in float64: right, or refused by name.

    python -m bench.others --dtype fp32 bf16 --processes 12 -o bench/results/networks/others.json

The list, bench/others_models.json, holds every classification and segmentation model of torchvision
and the smallest model of every module of timm that contains a convolution, each with two sizes of
images. Weights are random. Dropout and stochastic depth are set to zero, since their draws are not
torch's. Each network trains two steps of SGD with momentum; outputs, gradients, running statistics
and the second step are held against float64 by the rule of bench/generated/rule.py.

Each network runs in a process of its own, forked from one that has loaded the libraries, so that
one that crashes or hangs is a row of its own. Rows that the output file has are kept, and not run
again.
"""

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from bench.environment import environment, software
from bench.examine import TYPES, Job, Row, examine, row_of
from tvdnn.errors import InputError, UnsupportedOpError

LIST: Final = Path(__file__).with_name("others_models.json")


def main() -> None:
    options = _options()
    rows = _rows_in(options.output)
    done = {_key(row) for row in rows}
    jobs = [job for job in _jobs(options) if _key(job) not in done]
    begin = time.monotonic()
    for row in run_all(jobs, options.processes, options.seconds, begin + options.total_seconds):
        rows.append(row)
        ratio = "" if row.median_ratio is None else f" x{row.median_ratio:.2f}"
        print(f"{row.outcome:8s} {row.dtype} {row.name}@{row.side}{ratio} {row.why}", flush=True)
        _write(options.output, rows, len(done) + len(jobs), {})
    about = software() if _is_cpu() else environment()  # last: CUDA starts, and forks end
    _write(options.output, rows, len(done) + len(jobs), about)
    print(dict(Counter(row.outcome for row in rows)), f"of {len(done) + len(jobs)}", flush=True)


def _key(of: Job | Row) -> tuple[str, str, int, str]:
    return of.library, of.name, of.side, of.dtype


def _jobs(options: argparse.Namespace) -> list[Job]:
    """All networks at their first size of images, in each type, then all at their second."""
    listed = json.loads(LIST.read_text())
    if options.only is not None:
        listed = [each for each in listed if each["name"] in options.only]
    return [
        Job(
            each["library"],
            each["name"],
            each["sides"][number],
            dtype,
            options.device,
            each["tokens"],
        )
        for number in range(options.sizes)
        for each in listed
        for dtype in options.dtype
        for side in each["sides"][number : number + 1]
    ]


def _rows_in(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text())["rows"]] if path.exists() else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", nargs="+", choices=TYPES, default=["fp32", "bf16"])
    parser.add_argument("--device", default="cpu" if _is_cpu() else "cuda")
    parser.add_argument("--only", nargs="+", help="names of models; all where not given")
    parser.add_argument("--sizes", type=int, default=2, help="sizes of images of each network")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300, help="the most for one network")
    parser.add_argument("--total-seconds", type=float, default=1e9, help="no job starts after them")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args()


def _write(path: Path, rows: Sequence[Row], jobs: int, about: Mapping[str, str]) -> None:
    ratios = {
        dtype: median(found)
        for dtype in TYPES
        if (found := [r.median_ratio for r in rows if r.dtype == dtype and r.median_ratio])
    }
    document = {
        "title": "Networks of torchvision and timm beside torch in float64",
        "note": "Right or wrong by the rule of bench/generated/rule.py; weights are random.",
        "environment": about,
        "counts": dict(Counter(row.outcome for row in rows)),
        "jobs": jobs,
        "median_ratio": ratios,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _is_cpu() -> bool:
    return not Path("/dev/nvidia0").exists()


def run_all(jobs: Sequence[Job], processes: int, seconds: float, end: float) -> Iterator[Row]:
    """The rows of the jobs, each in a forked process with a limit of seconds."""
    context = get_context("fork")
    waiting, running = list(reversed(jobs)), dict[Connection, tuple[Job, Any, float]]()
    while waiting or running:
        while waiting and len(running) < processes and time.monotonic() < end:
            job = waiting.pop()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(job, sender), daemon=True)
            process.start()
            sender.close()
            running[receiver] = job, process, time.monotonic()
        if not running:
            return
        ready = wait(list(running), timeout=1.0)
        for receiver, (job, process, began) in list(running.items()):
            late = time.monotonic() - began > seconds
            if receiver not in ready and not late:
                continue
            del running[receiver]
            yield _answer(job, receiver, process, began, late=late and receiver not in ready)


def _answer(job: Job, receiver: Connection, process: Any, began: float, *, late: bool) -> Row:
    took = time.monotonic() - began
    row = None
    if not late:
        with suppress(EOFError):
            row = receiver.recv()
    process.kill()
    process.join()
    if row is not None:
        return row
    why = f"no answer in {took:.0f} s" if late else f"the process ended: {process.exitcode}"
    return row_of(job, "failed", why, seconds=took)


def _child(job: Job, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    began = time.monotonic()
    try:
        row = examine(job)
    except (UnsupportedOpError, InputError) as error:
        row = row_of(job, "refused", str(error).split("\nsupported:")[0][:600])
    except Exception as error:  # noqa: BLE001
        row = row_of(job, "failed", f"{type(error).__name__}: {error}"[:600])
    seconds = time.monotonic() - began
    sender.send(Row(**{**asdict(row), "seconds": round(seconds, 1)}))
    sender.close()


if __name__ == "__main__":
    main()
