"""Copies between device and host: by the copy engines, by kernels, and signalled by flags.

    python -m bench.copies -o FILE

Rates of each way, alone and both at once, by size; what each leaves of a matrix product beside it;
and a map offloaded while it is made: by a launch for each run of sections, after which events let
its copies go, or by one launch that counts what each section still lacks, on which copies wait by
cuStreamWaitValue32. Both forms are captured in CUDA graphs.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.command_line import parser_of
from bench.environment import environment
from tvdnn.runtime.lane_sync import wait_for
from tvdnn.units import MIB

SIZES: Final = (1, 4, 16, 64)  # MiB
MAP_NBYTES: Final = 256 * 224 * 224 * 64 * 2  # VGG-16's first, in bf16
SECTION_NBYTES: Final = 16 * MIB
RUN_SECTIONS: Final = 4
BLOCK: Final = 4096
REPEATS: Final = 7
PRODUCTS: Final = 12
Rows = list[dict[str, Any]]
Copy = Callable[[Tensor, Tensor], None]


@triton.jit
def _copy_kernel(source_ptr, target_ptr, num_blocks, BLOCK: tl.constexpr):
    """Blocks of 16-byte words. Each program copies every num_programs-th block."""
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        offs = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(target_ptr + offs, tl.load(source_ptr + offs))


def by_engine(source: Tensor, target: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def by_kernel(programs: int) -> Copy:
    """A kernel of few programs, that loads and stores pinned memory itself."""

    def run(source: Tensor, target: Tensor) -> None:
        words, out = source.view(torch.int32), target.view(torch.int32)
        _copy_kernel[(programs,)](words, out, words.numel() // BLOCK, BLOCK=BLOCK, num_warps=8)

    return run


WAYS: Final[dict[str, Copy]] = {
    "engine": by_engine,
    "kernel, 4 programs": by_kernel(4),
    "kernel, 8 programs": by_kernel(8),
    "kernel, 16 programs": by_kernel(16),
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    rows = [*rates(), *beside_a_product(), *offloads()]
    document = {"environment": environment(), "rows": rows}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


def show(row: dict[str, Any]) -> dict[str, Any]:
    print(*(f"{key}={value}" for key, value in row.items()), flush=True)
    return row


def seconds(run: Callable[[], None]) -> float:
    """Median time of a captured graph of the launches in `run`, its streams joined."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    graph.replay()
    return median(_timed(graph.replay) for _ in range(REPEATS))


def _timed(run: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def beside(*lanes: Callable[[], None]) -> Callable[[], None]:
    """All of these at once, each on a stream of its own."""
    streams = [torch.cuda.Stream() for _ in lanes]

    def run() -> None:
        current = torch.cuda.current_stream()
        for stream, lane in zip(streams, lanes, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                lane()
        for stream in streams:
            current.wait_stream(stream)

    return run


class Ends:
    """Device and pinned host bytes of several copies each way."""

    def __init__(self, nbytes: int, count: int) -> None:
        size = (count, nbytes)
        self.device = [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.host = [torch.ones(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]

    def to_host(self, way: Copy) -> Callable[[], None]:
        return lambda: _each(way, self.device[0], self.host[0])

    def to_device(self, way: Copy) -> Callable[[], None]:
        return lambda: _each(way, self.host[1], self.device[1])


def _each(way: Copy, sources: Tensor, targets: Tensor) -> None:
    for source, target in zip(sources, targets, strict=True):
        way(source, target)


def rates() -> Iterator[dict[str, Any]]:
    """GB/s of each way alone, and of both together at once."""
    for size in SIZES:
        count = max(4, 128 // size)
        ends, total = Ends(size * MIB, count), size * MIB * count
        for name, way in WAYS.items():
            lanes = (ends.to_host(way), ends.to_device(way))
            row = {"measured": "rate", "way": name, "mib": size}
            row["to_host"] = round(total / seconds(lanes[0]) / 1e9, 1)
            row["to_device"] = round(total / seconds(lanes[1]) / 1e9, 1)
            row["both"] = round(2 * total / seconds(beside(*lanes)) / 1e9, 1)
            yield show(row)
        mixed = beside(ends.to_host(WAYS["kernel, 4 programs"]), ends.to_device(by_engine))
        row = {"measured": "rate", "way": "kernel to host, engine to device", "mib": size}
        yield show(row | {"both": round(2 * total / seconds(mixed) / 1e9, 1)})


def beside_a_product() -> Iterator[dict[str, Any]]:
    """Time of bf16 products while both ways are busy, over their time alone."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    out = torch.empty_like(a)

    def products() -> None:
        for _ in range(PRODUCTS):
            torch.mm(a, b, out=out)

    ends, times = Ends(16 * MIB, 48), dict[str, list[float]]()
    lanes = {name: (ends.to_host(way), ends.to_device(way)) for name, way in WAYS.items()}
    for _ in range(REPEATS):  # in turns: the clock falls as the GPU warms
        for name, busy in {"alone": (), **lanes}.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            beside(lambda a=start, b=end: _between(a, products, b), *busy)()
            torch.cuda.synchronize()
            times.setdefault(name, []).append(start.elapsed_time(end))
    for name in lanes:
        slowdown = median(times[name]) / median(times["alone"])
        yield show({"measured": "product beside", "way": name, "slowdown": round(slowdown, 3)})


def _between(start: torch.cuda.Event, run: Callable[[], None], end: torch.cuda.Event) -> None:
    start.record()
    run()
    end.record()


@triton.jit
def _relu_kernel(x_ptr, y_ptr, count_ptr, first, TILES: tl.constexpr, BLOCK: tl.constexpr):
    """A tile of a section of TILES; with `count_ptr`, its section counts it when it is stored."""
    tile = first + tl.program_id(0).to(tl.int64)
    offs = tile * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.maximum(tl.load(x_ptr + offs), 0.0))
    if count_ptr is not None:
        tl.debug_barrier()
        tl.atomic_add(count_ptr + tile // TILES, 1, sem="release", scope="sys")


class Offload:
    """A map that is made and offloaded, section by section."""

    def __init__(self) -> None:
        self.numel = SECTION_NBYTES // 2
        self.sections = MAP_NBYTES // SECTION_NBYTES
        shape = (self.sections, self.numel)
        self.x = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        self.y = torch.empty_like(self.x)
        self.host = torch.empty(shape, dtype=torch.bfloat16, pin_memory=True)
        self.counts = torch.zeros(self.sections, dtype=torch.int32, device="cuda")
        self.tiles = self.numel // BLOCK
        self.stream = torch.cuda.Stream()

    def launch(self, first: int, sections: int, counts: Tensor | None) -> None:
        grid, start = (sections * self.tiles,), first * self.tiles
        _relu_kernel[grid](self.x, self.y, counts, start, TILES=self.tiles, BLOCK=BLOCK)

    def by_events(self) -> None:
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        for first in range(0, self.sections, RUN_SECTIONS):
            run = range(first, min(first + RUN_SECTIONS, self.sections))
            self.launch(first, len(run), None)
            event = current.record_event()
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(event)
                for section in run:
                    by_engine(self.y[section], self.host[section])
        current.wait_stream(self.stream)

    def by_flags(self) -> None:
        current = torch.cuda.current_stream()
        self.counts.zero_()
        self.stream.wait_stream(current)
        self.launch(0, self.sections, self.counts)
        with torch.cuda.stream(self.stream):
            for section in range(self.sections):
                wait_for(self.stream, self.counts[section].data_ptr(), self.tiles)
                by_engine(self.y[section], self.host[section])
        current.wait_stream(self.stream)

    def alone(self, counts: Tensor | None, sections: int) -> None:
        for first in range(0, self.sections, sections):
            self.launch(first, min(sections, self.sections - first), counts)


def offloads() -> Iterator[dict[str, Any]]:
    """Milliseconds of the map, made alone and made and offloaded, in both forms."""
    o = Offload()
    forms = {
        "a launch for each run": (lambda: o.alone(None, RUN_SECTIONS), o.by_events),
        "one launch with flags": (lambda: o.alone(o.counts, o.sections), o.by_flags),
    }
    for name, (alone, offloaded) in forms.items():
        o.host.zero_()
        row = {"measured": "offload", "way": name, "made_ms": round(1e3 * seconds(alone), 3)}
        row["offloaded_ms"] = round(1e3 * seconds(offloaded), 3)
        row["right"] = bool(torch.equal(o.host, o.y.cpu()))
        yield show(row)


if __name__ == "__main__":
    main()
