"""The CUDA executor: three streams, an event for every wait, each half of a step a CUDA graph."""

import random
from collections.abc import Sequence

import torch

from ..planner.schedule import Lane, Schedule
from ..planner.timeline import Span, Timeline, copy_waits
from .binding import Call, Lap

MAX_DELAY_CYCLES = 2_000_000  # about a millisecond on an H200


class CudaExecutor:
    """Runs the two halves of a schedule on one device.

    Copies are the copy engines', let go by events behind launches. Kernels that store to pinned
    memory themselves reach 52 of the engines' 55 GB/s, but 58 of their 100 where both ways are
    busy. One launch for a whole map that counts its finished sections, for whose counts the copies
    wait, was no faster than a launch for each run: 30.07 and 29.95 ms for 1.64 GB to leave
    (bench/copies.py, H200, 2026-11-21).

    `delay_seed` puts a random delay before every step, so that a missing wait shows as a
    difference.
    """

    def __init__(
        self,
        schedule: Schedule,
        calls: Sequence[Call],
        *,
        device: torch.device,
        delay_seed: int | None = None,
    ) -> None:
        self._schedule = schedule
        self._calls = calls
        self._device = device
        self._random = None if delay_seed is None else random.Random(delay_seed)
        self._side = {lane: torch.cuda.Stream(device) for lane in (Lane.OFFLOAD, Lane.PREFETCH)}
        self._main = torch.cuda.Stream(device)
        self._waited = {wait for step in schedule.steps for wait in step.waits}
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()  # of what opaque ops allocate, in either half

    def capture(self, first: int, end: int) -> None:
        """Capture steps [first, end) as one CUDA graph. Every kernel must have run once before."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._main, capture_error_mode="thread_local"
        ):
            self._issue(first, end, self._main, [])
        self._graphs[first, end] = graph

    def run(self, first: int, end: int) -> None:
        """Replay steps [first, end) on the current stream."""
        self._graphs[first, end].replay()

    def timed(self, first: int, end: int) -> Lap:
        """Replay steps [first, end); their seconds are told, and waited for, when asked for."""
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        self.run(first, end)
        ended.record()

        def seconds() -> float:
            ended.synchronize()
            elapsed_ms: float = begun.elapsed_time(ended)
            return elapsed_ms / 1e3

        return seconds

    def run_eagerly(self, first: int, end: int, calls: Sequence[Call] | None = None) -> None:
        """Issue steps [first, end) one by one from the current stream, with `calls` if given."""
        self._issue(first, end, torch.cuda.current_stream(self._device), [], calls or self._calls)

    def timeline(self, first: int, end: int) -> Timeline:
        """Run steps [first, end) once, with an event on both sides of each, and read them.

        The events take time of their lanes: between thousands of short launches stalls read low.
        VGG-16(256) under vdnn-all:m (4,300 steps) showed 61 ms, under :p (2,300) 215 ms, at the
        same 285 ms a step (H200, 2026-11-21).
        """
        count = 2 * (end - first) + 1
        events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(count)]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph, stream=self._main, capture_error_mode="thread_local"):
            events[-1].record(self._main)
            self._issue(first, end, self._main, events)
        graph.replay()
        torch.cuda.synchronize(self._device)
        spans = tuple(
            Span(
                self._schedule.steps[first + index].lane,
                first + index,
                events[-1].elapsed_time(events[2 * index]) / 1e3,
                events[-1].elapsed_time(events[2 * index + 1]) / 1e3,
            )
            for index in range(end - first)
        )
        return Timeline(
            spans,
            simulated=False,
            stall_s=sum(end - start for start, end in copy_waits(self._schedule, spans)),
        )

    def _issue(
        self,
        first: int,
        end: int,
        main: torch.cuda.Stream,
        events: Sequence[torch.cuda.Event],
        calls: Sequence[Call] | None = None,
    ) -> None:
        streams = {Lane.COMPUTE: main, **self._side}
        begun = torch.cuda.Event()
        begun.record(main)
        for stream in self._side.values():
            stream.wait_event(begun)
        done: dict[int, torch.cuda.Event] = {}
        for index in range(first, end):
            self._issue_step(index, first, streams, done, events, calls or self._calls)
        for stream in self._side.values():
            main.wait_stream(stream)

    def _issue_step(
        self,
        index: int,
        first: int,
        streams: dict[Lane, torch.cuda.Stream],
        done: dict[int, torch.cuda.Event],
        events: Sequence[torch.cuda.Event],
        calls: Sequence[Call],
    ) -> None:
        step = self._schedule.steps[index]
        stream = streams[step.lane]
        for wait in step.waits:
            if wait >= first:
                stream.wait_event(done[wait])
        with torch.cuda.stream(stream):
            if self._random is not None:
                torch.cuda._sleep(self._random.randrange(MAX_DELAY_CYCLES))
            if events:
                events[2 * (index - first)].record(stream)
            calls[index]()
            if events:
                events[2 * (index - first) + 1].record(stream)
        if index in self._waited:
            done[index] = torch.cuda.Event()
            done[index].record(stream)
