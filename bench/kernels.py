"""Every kernel beside cuDNN's, cuBLAS's or torch's own, and beside its roofline.

    python -m bench.kernels [--sets vgg16 resnet50 fused moments linear ...] [--dtypes bf16] -o F

Both sides run in turns in one process on random data, each time with a cold L2 cache; times are
medians. Errors are relative RMS against float64 in the same run. The roofline is what a large copy
and large matrix products reach on the same GPU. Writes the rows as JSON.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from bench.cases import conv, elementwise, linear
from bench.cases.case import Calls, Case
from bench.environment import environment
from bench.kernel_rows import Row, sums
from bench.timing import DTYPES, Ceilings, in_turns, measure_ceilings, recorded

SETS: Final[dict[str, Callable[[str], Iterator[Case]]]] = {
    "vgg16": lambda dtype: conv.cases(conv.VGG16, dtype),
    "resnet50": lambda dtype: conv.cases(conv.RESNET50, dtype),
    "fused": lambda dtype: conv.cases(conv.VGG16, dtype, passes=conv.FUSED),
    "moments": lambda dtype: conv.moment_cases(conv.RESNET50, dtype),
    "linear": linear.cases,
    "elementwise": elementwise.cases,
}
COMPILE_SAMPLES: Final = 16
COMPILE_THREADS: Final = 8
TURNS_S: Final = 0.04  # of both sides together, for a case


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bf16"])
    parser.add_argument("--match", default="", help="only cases whose kernel or shape has this")
    parser.add_argument("--seconds", type=float, default=inf, help="stop before a case after this")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_default_device("cuda")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    begin = time.monotonic()
    ceilings = measure_ceilings()
    print(f"copy {ceilings.bytes_per_s / 1e12:.2f} TB/s, products", end=" ")
    print({name: round(rate / 1e12) for name, rate in ceilings.flops_per_s.items()}, "TFLOP/s")
    chosen = list(_chosen(options.sets, options.dtypes, options.match))
    _compile([case for _, case in chosen])
    print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    rows: list[Row] = []
    for name, case in chosen:
        if time.monotonic() - begin > options.seconds:
            print(f"out of time before {name} {case.kernel} {case.shape}")
            break
        rows.append(measure(name, case, ceilings))
        print(line(rows[-1]), flush=True)
    print("\n".join(totals(rows)), f"{time.monotonic() - begin:.0f} s", sep="\n")
    document = {"environment": environment(), "ceilings": asdict(ceilings)}
    document["rows"] = [asdict(row) for row in rows]
    options.output.write_text(json.dumps(document, indent=1) + "\n")


def _chosen(sets: Sequence[str], dtypes: Sequence[str], text: str) -> Iterator[tuple[str, Case]]:
    for name in sets:
        for dtype in dtypes:
            for case in SETS[name](dtype):
                if text in f"{case.kernel} {case.shape}":
                    yield name, case


def _compile(cases: Sequence[Case]) -> None:
    """Launch our kernels once on few samples, compiling them side by side."""

    def launch(case: Case) -> None:
        case.make(min(case.samples, COMPILE_SAMPLES)).own()

    start = {"initializer": torch.set_default_device, "initargs": ("cuda",)}
    with ThreadPoolExecutor(COMPILE_THREADS, **start) as pool:
        list(pool.map(launch, (case for case in cases if case.flops)))
    _release()


def measure(name: str, case: Case, ceilings: Ceilings) -> Row:
    """Check, then time, both sides of a case."""
    calls = case.make(case.samples)
    with recorded() as launched:
        mine = calls.part(calls.own()).double().clone()
    error, peer_error = errors(calls, mine)
    least_s = ceilings.least_s(case.flops, case.nbytes, case.dtype)
    rounds = max(5, min(30, round(TURNS_S / least_s / 2)))
    seconds = in_turns({"own": calls.own, "peer": calls.peer}, rounds)
    own_s = seconds["own"]
    row = Row(
        name, case.kernel, case.shape, case.samples, case.count, case.dtype,
        1e3 * own_s, case.peer, 1e3 * seconds["peer"],
        case.flops / own_s / 1e12, case.nbytes / own_s / 1e9, least_s / own_s,
        error, peer_error, "; ".join(launched),
    )  # fmt: skip
    del calls, mine
    _release()
    return row


def errors(calls: Calls, mine: Tensor) -> tuple[float, float | None]:
    """Relative RMS against float64: ours, and the peer's where it computes the same numbers."""
    exact = calls.exact()
    if not calls.same_numbers:
        return _relative_rms(mine, exact), None
    return _relative_rms(mine, exact), _relative_rms(calls.part(calls.peer()).double(), exact)


def _relative_rms(actual: Tensor, exact: Tensor) -> float:
    return float((actual - exact).norm() / exact.norm())


def _release() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def line(row: Row) -> str:
    """A row for the terminal."""
    name = f"{row.dtype} {row.kernel:28} {row.shape:22} x{row.count}"
    rate = f"{row.tflops:5.0f} TFLOP/s" if row.tflops else f"{row.gbytes_per_s:5.0f} GB/s   "
    peer_error = "" if row.peer_error is None else f" / {row.peer_error:.1e}"
    return (
        f"{name} {row.ms:7.3f} ms {rate} {row.roofline_share:4.0%} of roofline, "
        f"{row.ratio:5.2f} x {row.peer}'s, error {row.error:.1e}{peer_error}"
    )


def totals(rows: Sequence[Row]) -> Iterator[str]:
    """Sums over a network's layers, by kernel and of all."""
    for each in sums(rows):
        worst = f"worst {each.worst.ratio:.2f} ({each.worst.kernel} {each.worst.shape})"
        yield (
            f"{each.set} {each.dtype} {each.kernel:24} {each.ms:7.2f} ms, {each.peer} "
            f"{each.peer_ms:7.2f}, ratio {each.ms / each.peer_ms:.3f}, {worst}"
        )


if __name__ == "__main__":
    main()
