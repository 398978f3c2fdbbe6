"""The measured rates of the host link: each direction alone, and both at once."""

from collections.abc import Callable
from statistics import median
from typing import Final

import torch

from ..kernels.copy.host import transfer
from ..planner.ir.costs import Link
from ..planner.ir.settings import ENGINE, KERNEL
from ..units import MIB

REPLAYS: Final = 5
LONG_NBYTES: Final = 64 * MIB
SHORT_NBYTES: Final = MIB
WAYS: Final = ((0,), (1,), (0, 1))  # to the host, to the device, both at once


def measure_link(device: torch.device, copies: str = ENGINE) -> Link:
    """Rates of long pinned copies in bytes per second, and the seconds that one more copy costs.

    `copies` is "engine" (the copy engines) or "kernel".
    """
    move = transfer if copies == KERNEL else _by_engine
    hosts = [torch.empty(LONG_NBYTES, dtype=torch.uint8).pin_memory() for _ in range(2)]
    devices = [torch.zeros(LONG_NBYTES, dtype=torch.uint8, device=device) for _ in range(2)]
    streams = [torch.cuda.Stream(device) for _ in range(2)]

    def run(ways: tuple[int, ...], nbytes: int, count: int) -> None:
        main = torch.cuda.current_stream(device)
        for way in ways:
            target, source = (hosts[0], devices[0]) if way == 0 else (devices[1], hosts[1])
            streams[way].wait_stream(main)
            with torch.cuda.stream(streams[way]):
                for _ in range(count):
                    move(source[:nbytes], target[:nbytes])
        for way in ways:
            main.wait_stream(streams[way])

    def seconds(ways: tuple[int, ...], nbytes: int, count: int) -> float:
        run(ways, nbytes, count)
        return median(timed(lambda: run(ways, nbytes, count)) for _ in range(REPLAYS)) / count

    to_host, to_device, both = (LONG_NBYTES / seconds(ways, LONG_NBYTES, 4) for ways in WAYS)
    short_s = seconds((0,), SHORT_NBYTES, 64)
    latency_s = max(0.0, short_s - SHORT_NBYTES / to_host)
    return Link(to_host, to_device, both, both, latency_s)


def _by_engine(source: torch.Tensor, target: torch.Tensor) -> None:
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
