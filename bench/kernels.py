"""Every kernel beside cuDNN's, cuBLAS's or torch's own, and beside its roofline.

    python -m bench.kernels [--sets vgg16 resnet50 fused moments linear ...] [--dtypes bf16] -o F

Both sides run in turns in one process on random data, each time with a cold L2 cache; times are
medians. Errors are relative RMS against float64 in the same run. The roofline is what copies and
large matrix products reach on the same GPU. Writes the rows as JSON.
"""

import gc
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from bench.cases.launch import Launch, Peer
from bench.cases.operands import Operands
from bench.command_line import parser_of
from bench.environment import environment
from bench.kernel_rates import MeasuredCase, measured_cases, rates_of
from bench.kernel_rows import SETS, Row, sums
from bench.timing import DTYPES, Ceilings, in_turns, measure_ceilings, recorded

COMPILE_SAMPLES: Final = 16
COMPILE_THREADS: Final = 8
TURNS_S: Final = 0.04  # of both sides together, for a case
A_SLEEP: Final = 4  # launches of a case that the host queues in one sleep of the GPU


def main() -> None:
    parser = parser_of(__doc__)
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
    _compile(chosen)
    print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    rows: list[Row] = []
    for case, dtype in chosen:
        if time.monotonic() - begin > options.seconds:
            print(f"out of time before {case.measured.kernel} {case.shape}")
            break
        rows.append(measure(case, dtype, ceilings))
        print(line(rows[-1]), flush=True)
    print("\n".join(totals(rows)), f"{time.monotonic() - begin:.0f} s", sep="\n")
    document = {"environment": environment(), "ceilings": asdict(ceilings)}
    document["rows"] = [asdict(row) for row in rows]
    options.output.write_text(json.dumps(document, indent=1) + "\n")


def _chosen(
    sets: Sequence[str], dtypes: Sequence[str], text: str
) -> Iterator[tuple[MeasuredCase, str]]:
    found = list(measured_cases())
    for name in sets:
        for dtype in dtypes:
            for each in found:
                if each.measured.set == name and text in f"{each.measured.kernel} {each.shape}":
                    yield each, dtype


def _compile(chosen: Sequence[tuple[MeasuredCase, str]]) -> None:
    """Launch our products once on few samples, compiling them side by side."""

    def launch(case: MeasuredCase, dtype: str) -> None:
        samples, *sides = case.measured.size
        size = (min(samples, COMPILE_SAMPLES), *sides)
        made = case.make(Operands(torch.device("cuda")), dtype, size)
        made.prepare()
        made.run()

    products = [each for each in chosen if each[0].measured.set != "elementwise"]
    start = {"initializer": torch.set_default_device, "initargs": ("cuda",)}
    with ThreadPoolExecutor(COMPILE_THREADS, **start) as pool:
        list(pool.map(lambda each: launch(*each), products))
    _release()


def measure(case: MeasuredCase, dtype: str, ceilings: Ceilings) -> Row:
    """Check, then time, both sides of a case."""
    launch = case.make(Operands(torch.device("cuda")), dtype)
    peer = launch.peer
    assert peer is not None, case.measured.kernel
    launch.prepare()
    with recorded() as launched:
        error, peer_error = errors(launch, peer)
    rates = rates_of(launch, ceilings, dtype)
    rounds = max(5, min(30, round(TURNS_S / rates.least_s / 2)))
    sleeps = 1 + len(launch.calls) // A_SLEEP
    seconds = in_turns({"own": launch.run, "peer": peer.run}, rounds, sleeps=sleeps)
    own_s, of = seconds["own"], case.measured
    row = Row(
        of.set, of.kernel, case.shape, of.size[0], of.count, dtype,
        1e3 * own_s, of.peer, 1e3 * seconds["peer"], *rates.at(own_s),
        error, peer_error, "; ".join(launched),
    )  # fmt: skip
    del launch, peer
    _release()
    return row


def errors(launch: Launch, peer: Peer) -> tuple[float, float | None]:
    """Relative RMS against float64: ours, and the peer's where it computes the same numbers."""
    launch.run()
    mine = peer.part(peer.result()).double().clone()
    exact = peer.exact()
    if not peer.same_numbers:
        return _relative_rms(mine, exact), None
    return _relative_rms(mine, exact), _relative_rms(peer.part(peer.run()).double(), exact)


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
