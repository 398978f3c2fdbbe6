"""The measured rates of the host link: each direction alone, and both at once.

And what kernels that encode straight to the host reach beside persistent convolutions, and cost
these.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Final

import torch

from ..kernels.codec.to_host import fp8_encode_to_host
from ..kernels.conv.conv2d import conv2d
from ..kernels.copy.host import transfer
from ..planner.ir.costs import Link
from ..planner.ir.settings import ENGINE, KERNEL
from ..units import MIB

REPLAYS: Final = 5
COPY_REPLAYS: Final = 9
LONG_NBYTES: Final = 64 * MIB
SHORT_NBYTES: Final = MIB
CODE_NBYTES: Final = 2 * MIB  # which take as long as a convolution of 0.1 ms or two
FEW, MANY = 32, 160  # encoders or convolutions, of which the others' end sees none
QUEUEING_CYCLES: Final = 20_000_000  # about 10 ms, in which the host queues all of them
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
        # The fastest: whatever else uses the link or the host's memory only makes copies slower.
        return min(timed(lambda: run(ways, nbytes, count)) for _ in range(COPY_REPLAYS)) / count

    to_host, to_device, both = (LONG_NBYTES / seconds(ways, LONG_NBYTES, 4) for ways in WAYS)
    short_s = seconds((0,), SHORT_NBYTES, 64)
    latency_s = max(0.0, short_s - SHORT_NBYTES / to_host)
    return Link(to_host, to_device, both, both, latency_s)


def with_zero_copy(link: Link, device: torch.device) -> Link:
    """The link with the rate of an encoder to the host, and what this costs launches beside it.

    Encoders run while convolutions do. For the rate convolutions go on for longer, for the cost
    encoders do.
    """
    convolve, encode = _convolution(device), _encoder(device)
    beside = torch.cuda.Stream(device)

    def seconds(convolutions: int, codes: int) -> tuple[float, float]:
        """Of the convolutions, and of the codes beside them."""
        main = torch.cuda.current_stream(device)
        begin, end, stored = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        torch.cuda._sleep(QUEUEING_CYCLES)
        begin.record()
        beside.wait_stream(main)
        with torch.cuda.stream(beside):
            for _ in range(codes):
                encode()
            stored.record()
        for _ in range(convolutions):
            convolve()
        end.record()
        torch.cuda.synchronize(device)
        return begin.elapsed_time(end) / 1e3, begin.elapsed_time(stored) / 1e3

    def middle(which: int, convolutions: int, codes: int) -> float:
        return median(seconds(convolutions, codes)[which] for _ in range(REPLAYS))

    seconds(FEW, FEW)
    alone_s = middle(0, FEW, 0)
    stored_s = middle(1, MANY, FEW)
    share = FEW * CODE_NBYTES / stored_s / link.out
    slowdown = middle(0, FEW, MANY) / alone_s
    return replace(link, zero_copy_share=share, zero_copy_slowdown=max(1.0, slowdown))


def _convolution(device: torch.device) -> Callable[[], None]:
    """A convolution of VGG-16 in bf16, in persistent programs."""
    x = torch.randn(16, 56, 56, 256, device=device).bfloat16()
    packed, y = torch.randn(256, 3, 3, 256, device=device).bfloat16(), torch.empty_like(x)
    ones = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    return lambda: conv2d(x, packed, None, y, precision="ieee", **ones)


def _encoder(device: torch.device) -> Callable[[], None]:
    raw = torch.randn(CODE_NBYTES, device=device).bfloat16()
    coded = torch.empty(CODE_NBYTES, dtype=torch.uint8).pin_memory()
    return lambda: fp8_encode_to_host(raw, coded)


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
