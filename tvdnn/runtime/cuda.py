"""The CUDA executor: three streams, and for each half of a step CUDA graphs of each."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Final

import torch

from ..collection import without_collection
from ..planner.schedule import Lane, Schedule, Step
from ..planner.simulate import COPY_LANES
from ..planner.timeline import Span, Timeline, copy_waits
from .binding import Call, Lap
from .capturing import capturing
from .crossings import crossings
from .interrupts import uninterrupted
from .lanes import Window, lanes_of, only_kernels

MAX_DELAY_CYCLES: Final = 2_000_000  # about a millisecond on an H200
WINDOW_COPIES = 120  # most of a lane: with waits, events and delays up to 840 operations
FEW: Final = 16  # one in so many of a window's launches


class CudaExecutor:
    """Runs the two halves of a schedule on one device.

    Each lane has a stream and graphs of its own, whose steps wait for those of others by their
    counts: ResNet-50(256) in 6.9 GiB takes 128 ms so, and 138 as one graph with a branch for each
    lane (H200, 2026-11-23). One graph it is where the streams are not apart, and where a launch
    copies or clears memory by what may be a queue that lanes share.

    A queue of copies that waits takes some 1,000 operations before the host waits too, one of
    kernels took 16,000 (H200, driver 580). So graphs are of a window of steps with few enough
    copies, and its launches are issued last: more copies may be queued, but those of windows
    before wait for nothing that is not issued. Before each window the host waits until few
    launches of the one before are left (`Lanes.wait`). While it waits, nothing that is issued
    waits for what is not, so that another thread may wait for the device with the driver's locks
    in hand. Most steps are one window, beside which the host prepares the next batch.

    Copies are the copy engines', let go behind launches. Kernels that store to pinned memory
    themselves reach 52 of the engines' 55 GB/s, but 58 of their 100 where both ways are busy. One
    launch for a whole map that counts its finished sections, for whose counts the copies wait, was
    no faster than a launch for each run: 30.07 and 29.95 ms for 1.64 GB to leave (bench/copies.py,
    H200, 2026-11-21).

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
        index = torch.cuda.current_device() if device.index is None else device.index
        self._lanes = lanes_of(torch.device("cuda", index))
        self._waited = {wait for step in schedule.steps for wait in step.waits}
        self._graphs: dict[tuple[int, int], Sequence[Window]] = {}
        self._pool = torch.cuda.graph_pool_handle()  # of what opaque ops allocate, in either half

    def capture(self, first: int, end: int) -> None:
        """Capture steps [first, end). Every kernel must have run once before."""
        self._graphs[first, end] = self._captured(first, end, [])

    def run(self, first: int, end: int) -> None:
        """Replay steps [first, end) on the current stream."""
        self._replay(self._graphs[first, end])

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
        with self._lanes.lock:
            self._issue(first, end, torch.cuda.current_stream(self._device), [], calls)

    def timeline(self, first: int, end: int) -> Timeline:
        """Run steps [first, end) once, with an event on both sides of each, and read them.

        The events take time of their lanes: between thousands of short launches stalls read low.
        VGG-16(256) under vdnn-all:m (4,300 steps) showed 61 ms, under :p (2,300) 215 ms, at the
        same 285 ms a step (H200, 2026-11-21).
        """
        count = 2 * (end - first) + 1
        events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(count)]
        graphs = self._captured(first, end, events)
        events[-1].record()
        self._replay(graphs)
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

    def _captured(
        self, first: int, end: int, events: Sequence[torch.cuda.Event]
    ) -> Sequence[Window]:
        """The steps as windows, to be issued in this order."""
        with self._lanes.lock:  # which others hold until the device has all that it waits for
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
            if self._lanes.apart:
                windows = list(self._by_lane(first, end, events))
                found = [window.graphs.get(Lane.COMPUTE) for window in windows]
                if _is_one(windows) or all(only_kernels(graph) for graph in found if graph):
                    return windows
            with self._capturing(Lane.COMPUTE) as graph:
                self._issue(first, end, self._lanes.streams[Lane.COMPUTE], events)
        return [Window({Lane.COMPUTE: graph}, None)]

    def _by_lane(
        self, first: int, end: int, events: Sequence[torch.cuda.Event]
    ) -> Iterator[Window]:
        """Windows of the steps, each few enough copies long."""
        steps = self._schedule.steps
        awaited = crossings(steps, first, end)
        told = {count for counts in awaited.values() for count in counts.values()}
        for window in windows_of(steps, first, end):
            launches = [index for index in window if steps[index].lane is Lane.COMPUTE]
            few_left, first_of_few = None, end
            if 0 < len(launches) < len(window):
                few_left = torch.cuda.Event(external=True, blocking=True)
                first_of_few = launches[-few_of(len(launches))]
            graphs: dict[Lane, torch.cuda.CUDAGraph] = {}
            for lane in Lane:
                own = [index for index in window if steps[index].lane is lane]
                if not own:
                    continue
                with self._capturing(lane) as graphs[lane]:
                    reached = 0
                    for index in own:
                        if few_left is not None and index == first_of_few:
                            few_left.record()
                        if reached or awaited[index]:
                            self._lanes.meet(lane, reached, awaited[index])
                        self._call(self._calls[index], events, index - first)
                        reached = index + 1 if index + 1 in told else 0
                    if reached:
                        self._lanes.meet(lane, reached, {})
            yield Window(graphs, few_left)

    @contextmanager
    def _capturing(self, lane: Lane) -> Iterator[torch.cuda.CUDAGraph]:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with capturing(graph, self._lanes.streams[lane], self._pool):
            yield graph
        graph.instantiate()
        self._lanes.upload(graph, lane)

    def _replay(self, windows: Sequence[Window]) -> None:
        if _is_one(windows):
            (graph,) = windows[0].graphs.values()
            graph.replay()
            return
        current = torch.cuda.current_stream(self._device)
        streams = self._lanes.streams
        self._lanes.wait()  # where it can be interrupted
        # Else a lane would wait for what never comes, or what is freed, for a lane.
        with without_collection(), uninterrupted(), self._lanes.lock:
            self._lanes.reset()
            for stream in streams.values():
                stream.wait_stream(current)
            for window in windows:
                self._lanes.issue(window)
            for stream in streams.values():
                current.wait_stream(stream)

    def _issue(
        self,
        first: int,
        end: int,
        main: torch.cuda.Stream,
        events: Sequence[torch.cuda.Event],
        calls: Sequence[Call] | None = None,
    ) -> None:
        """Issue steps [first, end), copies beside `main`, with an event for each wait."""
        streams = {**self._lanes.streams, Lane.COMPUTE: main}
        begun = main.record_event()
        for lane in COPY_LANES:
            streams[lane].wait_event(begun)
        done: dict[int, torch.cuda.Event] = {}
        for index in range(first, end):
            step = self._schedule.steps[index]
            stream = streams[step.lane]
            for wait in step.waits:
                if wait >= first:
                    stream.wait_event(done[wait])
            with torch.cuda.stream(stream):
                self._call((calls or self._calls)[index], events, index - first)
            if index in self._waited:
                done[index] = stream.record_event()
        for lane in COPY_LANES:
            main.wait_stream(streams[lane])

    def _call(self, call: Call, events: Sequence[torch.cuda.Event], number: int) -> None:
        """Make a call on the current stream, after a delay if asked for, between its two events."""
        if self._random is not None:
            torch.cuda._sleep(self._random.randrange(MAX_DELAY_CYCLES))
        if events:
            events[2 * number].record()
        call()
        if events:
            events[2 * number + 1].record()


def windows_of(steps: Sequence[Step], first: int, end: int) -> Iterator[range]:
    """Steps [first, end) in parts of at most `WINDOW_COPIES` copies on each lane."""
    begin, copies = first, Counter[Lane]()
    for index in range(first, end):
        lane = steps[index].lane
        if lane not in COPY_LANES:
            continue
        if copies[lane] == WINDOW_COPIES:
            yield range(begin, index)
            begin, copies = index, Counter()
        copies[lane] += 1
    if begin < end:
        yield range(begin, end)


def few_of(launches: int) -> int:
    """How many of a window's launches are left when the next window is issued; at least one."""
    return ceil(launches / FEW)


def _is_one(windows: Sequence[Window]) -> bool:
    """Whether there is one graph, which waits for no other."""
    return len(windows) == 1 and len(windows[0].graphs) == 1
