"""Seconds of what runs on a GPU: of a call, and of lanes of calls captured as one graph."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, TypeAlias

import torch

REPLAYS: Final = 5

Call: TypeAlias = Callable[[], None]


def replayed_s(device: torch.device, *lanes: Sequence[Call]) -> float:
    """Median seconds of lanes side by side, on each call after call; each has run once before."""
    streams = [torch.cuda.Stream(device) for _ in lanes]
    main, *others = streams
    captured = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    with torch.cuda.graph(captured, stream=main, capture_error_mode="thread_local"):
        for stream in others:
            stream.wait_stream(main)
        for stream, calls in zip(streams, lanes, strict=True):
            with torch.cuda.stream(stream):
                for call in calls:
                    call()
        for stream in others:
            main.wait_stream(stream)
    captured.replay()
    return median(timed(captured.replay) for _ in range(REPLAYS))


def in_turns_s(device: torch.device, calls: Sequence[Call], turns: int) -> float:
    """Median seconds of a turn, in which each call on a stream of its own waits for the last."""
    streams = [torch.cuda.Stream(device) for _ in calls]
    captured = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    with torch.cuda.graph(captured, stream=streams[0], capture_error_mode="thread_local"):
        last = streams[0]
        for _ in range(turns):
            for stream, call in zip(streams, calls, strict=True):
                stream.wait_stream(last)
                with torch.cuda.stream(stream):
                    call()
                last = stream
        streams[0].wait_stream(last)
    captured.replay()
    return median(timed(captured.replay) for _ in range(REPLAYS)) / turns


def timed(run: Callable[[], object]) -> float:
    """Seconds of `run` on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    elapsed_ms: float = begin.elapsed_time(end)
    return elapsed_ms / 1e3
