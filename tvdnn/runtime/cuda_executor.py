"""The CUDA executor: the phases of a step as CUDA graphs, whose branches are lanes."""

import random
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import torch

from ..planner.ir.schedule import Lane, Schedule
from ..planner.ir.timeline import Span, Timeline, copy_waits
from ..planner.lowering.lane_counters import cross_lane_waits, graph_segment_waits
from .binding import Call, Lap
from .defer_signals import defer_signals
from .file_lanes import FilePhase, FileRun, file_phase
from .host_counts import FILE_LANES
from .lane_sync import DEVICE_COPIES, SIDE_LANES, GraphSegment, Sum, lanes_of, num_copies
from .section_file import SectionFile
from .segments import are_followed, behind_sums, low_water_of, segments_of
from .streams import capture, fork_join

MAX_DELAY_CYCLES: Final = 2_000_000  # about a millisecond on an H200
Events: TypeAlias = Sequence[torch.cuda.Event]
# By step, its start and its end by the host's clock, in seconds.
Spans: TypeAlias = Mapping[int, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class CapturedPhase:
    """Steps [first, end) as graph segments in the order of issue, and those of the file.

    There are no segments where branches are not independent, or a launch copies, and there are
    steps of the file or sums that no graph holds.
    """

    first: int
    end: int
    segments: Sequence[GraphSegment]
    files: FilePhase | None


class CudaExecutor:
    """Runs the phases of a schedule on one device.

    A phase is one or more segments. A segment is a CUDA graph with a branch for each lane. The
    steps of a branch wait for other branches by counters: ResNet-50(256) in 6.9 GiB takes 128 ms,
    and 138 ms with waits as edges of the graph (H200, 2026-11-23). Edges are used where branches
    may share a queue of the GPU, or a launch copies or clears memory, possibly on a queue that
    lanes share. Sums are then branches, too.

    Sums over processes are launches beside the segments: a graph each, or calls where no graph can
    hold them (not `captures`). A sum comes behind the segment with all that it waits for, and a
    step that waits for a sum begins another segment behind it. So whatever waits in a queue is
    issued behind what it waits for, and a segment without copies stays one chain of launches. As a
    branch of a segment, sums let each launch of ResNet-50(256) begin 0.4 us later, 0.25 ms a step,
    and hung where others waited by counters beside them (H200, 2026-11-30).

    One driver call issues a segment. Calls of other threads, which may wait for the device while
    they hold the driver's locks, come before it or after it. With a graph for each branch, a thread
    that frees memory could come between two branches, and both hung.

    The driver issues branches one after another, in the order of their capture (driver 580). Copies
    come first. A waiting queue takes some 1,000 operations before the host blocks, which bounds the
    copies of a segment. Launches come last. Before each segment the host waits until few launches
    of the segment before are left (`Lanes.wait`). At most some 1,000 kernels are then queued. With
    more, a thread of the driver is busy all the time, and copies get 51 of the link's 55 GB/s:
    ResNet-50(256) in 9.1 GiB took 44.6 ms as one segment of 655 launches and 42.1 ms as two;
    DenseNet-121(128) in 4.7 GiB took 27.9 ms as one of 1,495 and 26.6 ms as four (H200,
    2026-11-23).

    Copy engines copy, each copy behind the launch that it waits for. Kernels that store to pinned
    memory reach 52 of the engines' 55 GB/s, but 58 of their 100 GB/s where both directions are
    busy. One launch for a whole map that counts its finished sections was no faster than a launch
    for each run: 30.07 and 29.95 ms to offload 1.64 GB (bench/copies.py, H200, 2026-11-21).

    `delay_seed` puts a random delay before every step. A missing wait then shows as a different
    result.

    Threads of the host run the steps of a file beside the segments (file_lanes.py). Where branches
    are not independent, and there are steps of a file or sums that no graph holds, the host issues
    steps one by one, and runs those of the file among them.
    """

    def __init__(
        self,
        schedule: Schedule,
        calls: Sequence[Call],
        *,
        device: torch.device,
        file: SectionFile | None = None,
        delay_seed: int | None = None,
        captures: bool = True,
    ) -> None:
        self._schedule, self._device = schedule, device
        self.calls = calls
        self._random = None if delay_seed is None else random.Random(delay_seed)
        index = torch.cuda.current_device() if device.index is None else device.index
        self._lanes = lanes_of(torch.device("cuda", index))
        used = {step.lane for step in schedule.steps}
        self._independent = self._lanes.are_independent(used.difference(FILE_LANES))
        self._file, self._captures = file, captures
        self._side_lanes = [lane for lane in SIDE_LANES if lane in self._lanes.streams]
        self._waited = {wait for step in schedule.steps for wait in step.waits}
        self.captured: dict[tuple[int, int], CapturedPhase] = {}
        self._pool = torch.cuda.graph_pool_handle()  # for allocations of eager ops in both phases

    def capture(self, first: int, end: int) -> None:
        """Capture steps [first, end). Every kernel must have run once before."""
        self.captured[first, end] = self._captured(first, end, [])

    def keep(self, phases: Collection[tuple[int, int]]) -> None:
        """Drop all captured phases but these."""
        torch.cuda.synchronize(self._device)  # one may still run
        self.captured = {phase: self.captured[phase] for phase in {*phases} & self.captured.keys()}

    def run(self, first: int, end: int) -> None:
        """Replay steps [first, end) on the current stream. Ends once the file's steps have."""
        self._replay(self.captured[first, end])

    def timed(self, first: int, end: int) -> Lap:
        """Replay steps [first, end). The lap waits for them and returns their seconds."""
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
        """Run steps [first, end) once, with an event before and after each, and read the events.

        Events take time of their lanes. Stalls read low among thousands of short launches:
        VGG-16(256) under vdnn-all:m (4,300 steps) showed 61 ms, under vdnn-all:p (2,300 steps) 215
        ms, both at 285 ms a step (H200, 2026-11-21).
        """
        count = 2 * (end - first) + 1
        events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(count)]
        captured = self._captured(first, end, events)
        events[-1].record()  # at once: capture waits for the device
        begun_s = time.perf_counter()
        of_host = self._replay(captured, events)
        torch.cuda.synchronize(self._device)

        def span(index: int) -> Span:
            lane, number = self._schedule.steps[index].lane, 2 * (index - first)
            if index in of_host:
                return Span(lane, index, *(each - begun_s for each in of_host[index]))
            pair = events[number : number + 2]
            return Span(lane, index, *(events[-1].elapsed_time(each) / 1e3 for each in pair))

        spans = tuple(map(span, range(first, end)))
        return Timeline(
            spans,
            simulated=False,
            stall_s=sum(end - start for start, end in copy_waits(self._schedule, spans)),
        )

    def _captured(self, first: int, end: int, events: Events) -> CapturedPhase:
        files = file_phase(self._schedule, first, end)
        with self._lanes.lock:  # no other schedule issues work meanwhile
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
            independent = self._independent and self._lanes.independent
            found = list(self._segments(first, end, events, files)) if independent else []
            if found and all(safe for _, safe in found):
                return CapturedPhase(first, end, [segment for segment, _ in found], files)
            if files is not None or not self._captures:
                return CapturedPhase(first, end, [], files)
            with self._capture() as graph:
                self._issue(first, end, self._lanes.streams[Lane.COMPUTE], events)
        return CapturedPhase(first, end, [GraphSegment(graph, None, ())], None)

    def _segments(
        self, first: int, end: int, events: Events, files: FilePhase | None
    ) -> Iterator[tuple[GraphSegment, bool]]:
        """Each segment of the steps, and whether its launches leave the queues of copies alone."""
        steps, streams = self._schedule.steps, self._lanes.streams
        awaited = {**cross_lane_waits(steps, first, end)}
        begins = behind_sums(awaited)
        segments = list(segments_of(steps, first, end, begins))
        followed = are_followed(steps, segments, begins)
        copied = any(step.lane in DEVICE_COPIES for step in steps[first:end])
        for index, before in graph_segment_waits(steps, segments).items():
            awaited[index] = {**awaited[index], **before}
        told = {count for counts in awaited.values() for count in counts.values()}
        told_there = files.awaited if files else ()
        assert all(lane is not Lane.REDUCE for lane, _ in told_there), "no file lane waits for sums"

        def meet(lane: Lane, reached: int, before: Mapping[Lane, int]) -> None:
            tells_host = (lane, reached) in told_there
            self._lanes.meet(lane, reached, before, tells_host=tells_host)

        def branch(lane: Lane, segment: range, low_water: torch.cuda.Event | None) -> None:
            own = [index for index in segment if steps[index].lane is lane]
            first_of_few = own[-low_water_of(len(own))] if own else end
            reached = 0
            for index in own:
                if low_water is not None and index == first_of_few:
                    low_water.record()
                if reached or awaited[index]:
                    meet(lane, reached, awaited[index])
                self._call(self.calls[index], events, index - first)
                reached = index + 1 if index + 1 in told else 0
            if reached:
                meet(lane, reached, {})

        for segment, is_followed in zip(segments, followed, strict=True):
            used = {steps[index].lane for index in segment}
            sums = [
                self._sum(index, awaited[index], events, first)
                for index in segment
                if steps[index].lane is Lane.REDUCE
            ]
            if used <= {Lane.REDUCE, *FILE_LANES}:
                yield GraphSegment(None, None, sums), True
                continue
            branching = [lane for lane in DEVICE_COPIES if lane in used]
            awaits = copied and is_followed
            low_water = torch.cuda.Event(external=True, blocking=True) if awaits else None
            others = [streams[lane] for lane in branching]
            with self._capture() as graph, fork_join(streams[Lane.COMPUTE], others):
                for lane in branching:
                    with torch.cuda.stream(streams[lane]):
                        branch(lane, segment, None)
                copies = num_copies(streams[Lane.COMPUTE]) if branching else 0
                branch(Lane.COMPUTE, segment, low_water)
                safe = not branching or num_copies(streams[Lane.COMPUTE]) == copies
            yield GraphSegment(graph, low_water, sums), safe

    def _sum(self, index: int, awaited: Mapping[Lane, int], events: Events, first: int) -> Sum:
        """A sum over processes as a launch of its own."""
        before: dict[Lane, int] = {**awaited}
        before.pop(Lane.REDUCE, None)  # its own stream
        call: Call = partial(self._call, self.calls[index], events, index - first)
        if self._captures:
            with warnings.catch_warnings():  # NCCL does nothing where one process sums
                warnings.filterwarnings("ignore", "The CUDA Graph is empty")
                with self._capture(Lane.REDUCE) as graph:
                    call()
            call = graph.replay
        return Sum(call, before, index + 1)

    @contextmanager
    def _capture(self, lane: Lane = Lane.COMPUTE) -> Iterator[torch.cuda.CUDAGraph]:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with capture(graph, self._lanes.streams[lane], self._pool):
            yield graph
        graph.instantiate()
        self._lanes.upload(graph)

    def _replay(self, phase: CapturedPhase, events: Events = ()) -> Spans:
        """Run the steps of a phase. Returns when those of the file ran."""
        segments = phase.segments
        if not segments:
            with defer_signals(), self._lanes.lock:
                current = torch.cuda.current_stream(self._device)
                return self._issue(phase.first, phase.end, current, events)
        lone = segments[0].lone_graph if len(segments) == 1 and phase.files is None else None
        if lone is not None:
            lone.replay()
            return {}
        self._lanes.wait()  # an interrupt may come here
        # An interrupt inside would end a phase in its middle, and its memory could be freed.
        with defer_signals():
            if phase.files is None:
                self._issue_segments(segments, None)
                return {}
            assert self._file is not None, "the schedule uses a file"
            counts = self._lanes.counts_with_host()
            run = FileRun(phase.files, self.calls, self._file, counts, self._random)
            with run.ended(torch.cuda.current_stream(self._device).query):
                self._issue_segments(segments, run)
            return run.spans

    def _issue_segments(self, segments: Sequence[GraphSegment], run: FileRun | None) -> None:
        """Issue the segments of a phase, beside the threads that run its steps of the file."""
        with self._lanes.lock:
            self._lanes.reset()
            if run is not None:
                run.begin()
                self._lanes.begin_with_host()
            try:
                for segment in segments:
                    self._lanes.issue(segment)
            finally:
                self._lanes.join(run.phase.last_counts if run else {})

    def _issue(
        self,
        first: int,
        end: int,
        main: torch.cuda.Stream,
        events: Events,
        calls: Sequence[Call] | None = None,
    ) -> Spans:
        """Issue steps [first, end): launches on `main`, copies on their streams.

        The host runs those of the file meanwhile. Returns when.
        """
        streams = {**self._lanes.streams, Lane.COMPUTE: main}
        done: dict[int, torch.cuda.Event] = {}
        spans: dict[int, tuple[float, float]] = {}
        with fork_join(main, [streams[lane] for lane in self._side_lanes]):
            for index in range(first, end):
                step = self._schedule.steps[index]
                awaited = [done[wait] for wait in step.waits if wait in done]
                if step.lane in FILE_LANES:
                    for event in awaited:
                        event.synchronize()
                    start_s = time.perf_counter()
                    (calls or self.calls)[index]()
                    spans[index] = start_s, time.perf_counter()
                    continue
                stream = streams[step.lane]
                for event in awaited:
                    stream.wait_event(event)
                with torch.cuda.stream(stream):
                    self._call((calls or self.calls)[index], events, index - first)
                if index in self._waited:
                    done[index] = stream.record_event()
        return spans

    def _call(self, call: Call, events: Events, number: int) -> None:
        """Make a call on the current stream, after the random delay, between its two events."""
        if self._random is not None:
            torch.cuda._sleep(self._random.randrange(MAX_DELAY_CYCLES))
        if events:
            events[2 * number].record()
        call()
        if events:
            events[2 * number + 1].record()
