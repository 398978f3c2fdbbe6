"""The host link's rates, measured: each way alone, both ways at once, and beside a network."""

from collections.abc import Callable, Sequence
from math import ceil
from statistics import median
from typing import Final

import torch

from ..planner.costs import Link
from ..units import MIB

REPLAYS: Final = 5
LONG_NBYTES: Final = 64 * MIB
SHORT_NBYTES: Final = MIB
PIECE_NBYTES: Final = 16 * MIB
WAYS: Final = ((0,), (1,), (0, 1))  # to the host, to the device, both at once
BUSY: Final = ("to_host_busy", "to_device_busy")
ENDS_NBYTES: Final = 2 * LONG_NBYTES  # on the device
MOST_ROUNDS: Final = 200


def measure_link(device: torch.device) -> Link:
    """Rates of long pinned copies, one way and both at once, and what one more copy costs."""
    ends = _Ends(device)

    def copies(ways: tuple[int, ...], nbytes: int, count: int) -> None:
        main = torch.cuda.current_stream(device)
        for way in ways:
            ends.streams[way].wait_stream(main)
            with torch.cuda.stream(ends.streams[way]):
                for _ in range(count):
                    ends.copy(way, 0, nbytes)
        for way in ways:
            main.wait_stream(ends.streams[way])

    def seconds(ways: tuple[int, ...], nbytes: int, count: int) -> float:
        copies(ways, nbytes, count)
        return median(timed(lambda: copies(ways, nbytes, count)) for _ in range(REPLAYS)) / count

    to_host, to_device, both = (LONG_NBYTES / seconds(ways, LONG_NBYTES, 4) for ways in WAYS)
    short_s = seconds((0,), SHORT_NBYTES, 64)
    return Link(to_host, to_device, both, both, max(0.0, short_s - SHORT_NBYTES / to_host))


def busy_rates(
    launches: Sequence[Callable[[], None]], seconds: float, link: Link, device: torch.device
) -> list[float]:
    """Bytes per second each way beside these launches, which take so many seconds together.

    ResNet-50's forward pass leaves 47 of 55 GB/s to the host on an H200, where an elementwise
    kernel over maps that no cache holds leaves 52. Copies and launches are branches of one graph,
    as in a step.
    """
    if not launches:
        return [link.to_host, link.to_device]
    ends = _Ends(device)
    most_s = 2 * LONG_NBYTES / min(link.to_host, link.to_device)
    rounds = min(MOST_ROUNDS, ceil(most_s / seconds))
    return [
        min(_busy_rate(ends, way, launches, rounds), alone)
        for way, alone in enumerate((link.to_host, link.to_device))
    ]


def _busy_rate(
    ends: "_Ends", way: int, launches: Sequence[Callable[[], None]], rounds: int
) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    graph, main, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(ends.device), ends.streams[way]
    torch.cuda.synchronize(ends.device)
    with torch.cuda.graph(graph, stream=main, capture_error_mode="thread_local"):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            begin.record(side)
            for start in range(0, LONG_NBYTES, PIECE_NBYTES):
                ends.copy(way, start, start + PIECE_NBYTES)
            end.record(side)
        for _ in range(rounds):
            for launch in launches:
                launch()
        main.wait_stream(side)

    def seconds() -> float:
        graph.replay()
        torch.cuda.synchronize(ends.device)
        elapsed_ms: float = begin.elapsed_time(end)
        return elapsed_ms / 1e3

    return LONG_NBYTES / median(seconds() for _ in range(REPLAYS))


class _Ends:
    """Pinned and device memory that copies run between, and a stream for each way."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.streams = [torch.cuda.Stream(device) for _ in WAYS[-1]]
        self._hosts = [torch.empty(LONG_NBYTES, dtype=torch.uint8).pin_memory() for _ in WAYS[-1]]
        self._devices = [
            torch.zeros(LONG_NBYTES, dtype=torch.uint8, device=device) for _ in WAYS[-1]
        ]

    def copy(self, way: int, start: int, stop: int) -> None:
        """Copy these bytes on the current stream."""
        host, device = self._hosts[way][start:stop], self._devices[way][start:stop]
        target, source = (host, device) if way == 0 else (device, host)
        target.copy_(source, non_blocking=True)


def timed(run: Callable[[], None]) -> float:
    """Seconds of `run` on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    elapsed_ms: float = begin.elapsed_time(end)
    return elapsed_ms / 1e3
