"""Lane synchronization on CUDA: the streams of the device's lanes, and how far each lane has come.

Lanes wait for one another by counters in device memory. Launches wait in a kernel, copies by the
CUDA driver's stream memory operations. Edges of one graph would slow copies down: the driver
spreads the graph's nodes over many streams, and copies get 47 to 49 of the link's 55 GB/s even
while no kernel runs (H200, 2026-11-22).
"""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from time import monotonic
from typing import Any, Final

import torch

from ..errors import DeviceError
from ..kernels.copy.semaphore import meet
from ..planner.ir.schedule import LANE_PAIRS, Lane
from .driver import driver
from .host_counts import FILE_LANES, RUN, HostCounts
from .streams import capture, fork_join

PATIENCE_S: Final = 2.0
# The links that the device copies over, and the lanes whose work a stream of the device runs.
DEVICE_PAIRS: Final = tuple(pair for pair in LANE_PAIRS if pair.on_device)
DEVICE_COPIES: Final = tuple(lane for pair in DEVICE_PAIRS for lane in (pair.out, pair.back))
# The lanes that have streams beside compute's.
SIDE_LANES: Final = (*DEVICE_COPIES, Lane.REDUCE)
# The lanes of every plan. Others get streams once a plan has them: the GPU has few queues.
FIRST_LANES: Final = (Lane.COMPUTE, Lane.OFFLOAD, Lane.PREFETCH)


def first_meeting(device: torch.device) -> torch.Tensor:
    """Counts of 0 for all lanes, for which the kernel that waits for counts ran once."""
    counts = torch.zeros(len(Lane), dtype=torch.int32, device=device)
    meet(counts, int(Lane.COMPUTE), 0, {})
    return counts


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over processes, which is issued behind a segment."""

    run: Callable[[], object]  # on the current stream
    awaited: Mapping[Lane, int]  # the counts of other lanes
    reached: int  # its lane's count once it has ended


@dataclass(frozen=True, slots=True)
class GraphSegment:
    """Steps that are issued together: a CUDA graph with a branch for each lane but that of sums."""

    graph: torch.cuda.CUDAGraph | None  # None: there are only sums
    # Recorded when few launches are left to run. None where the host does not wait for that.
    low_water: torch.cuda.Event | None
    sums: Sequence[Sum]

    @property
    def lone_graph(self) -> torch.cuda.CUDAGraph | None:
        """The graph, where there is no sum beside it and the host does not wait for it."""
        return self.graph if self.low_water is None and not self.sums else None


class Lanes:
    """The streams that all schedules on a device share, and a counter of steps for each lane.

    Work is captured on `streams`, or issued there step by step. A caller that issues steps or graph
    segments holds `lock` until all of them are issued. No two schedules then wait for each other.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.streams = {lane: torch.cuda.Stream(device) for lane in FIRST_LANES}
        self.lock = Lock()
        self._replay_streams = deque(torch.cuda.Stream(device) for _ in range(2))
        self._low_water = torch.cuda.Event()
        with torch.cuda.device(device):
            # Loads the kernel: a load during a step could deadlock.
            self._counts = first_meeting(device)
        torch.cuda.synchronize(device)
        self.independent = not _one_at_a_time() and are_independent_queues(
            list(self.streams.values()), self._replay_streams
        )
        self._all_independent = self.independent  # with lanes that were added
        self._host_counts: HostCounts | None = None  # made for the first plan with a file

    def counts_with_host(self) -> HostCounts:
        """The counts by which these lanes and threads of the host wait for one another."""
        self._host_counts = self._host_counts or HostCounts()
        return self._host_counts

    def are_independent(self, lanes: Collection[Lane]) -> bool:
        """Whether branches of these lanes run while others wait. New lanes get their streams.

        That of sums is no branch.
        """
        new = [lane for lane in lanes if lane not in self.streams]
        for lane in new:
            self.streams[lane] = torch.cuda.Stream(self._device)
        if set(new) - {Lane.REDUCE}:
            streams = [each for lane, each in self.streams.items() if lane is not Lane.REDUCE]
            self._all_independent = self.independent and are_independent_queues(
                streams, self._replay_streams
            )
        few = set(lanes) <= {*FIRST_LANES, Lane.REDUCE}
        return self.independent if few else self._all_independent

    @property
    def _issuing(self) -> list[torch.cuda.Stream]:
        """The streams on which segments and sums are issued."""
        sums = self.streams.get(Lane.REDUCE)
        return [*self._replay_streams, *([] if sums is None else [sums])]

    def reset(self) -> None:
        """Set the counters to 0 in the current stream's order, once no segment runs."""
        current = torch.cuda.current_stream(self._counts.device)
        for stream in self._issuing:
            current.wait_stream(stream)
        self._counts.zero_()
        for stream in self._issuing:
            stream.wait_stream(current)

    def begin_with_host(self) -> None:
        """Set the host's counts to 0 behind `reset`, then let the threads of the run begin."""
        counts, (first, *others) = self.counts_with_host(), self._replay_streams
        for lane in Lane:
            _write(first, counts.address(lane), 0)
        _write(first, counts.address(RUN), counts.runs)
        for stream in others:
            stream.wait_stream(first)

    def join(self, of_host: Mapping[Lane, int]) -> None:
        """Let the current stream go on once no segment runs, and the host has these counts."""
        for lane, count in of_host.items():
            wait_for(self._replay_streams[0], self._address(lane), count)
        for stream in self._issuing:
            torch.cuda.current_stream(self._counts.device).wait_stream(stream)

    def meet(
        self, lane: Lane, reached: int, awaited: Mapping[Lane, int], *, tells_host: bool = False
    ) -> None:
        """Signal that the lane has done `reached` steps, then wait for the counts `awaited`.

        0 signals nothing. Launches signal and wait by a kernel, copies by the stream's memory
        operations. A lane waits for its own count of the segment before, and for sums over
        processes, by memory operations too: a waiting kernel would keep a launch from the whole
        GPU. `tells_host` signals threads of the host, too. Lanes that these run are awaited where
        the host has their counts.
        """
        told_there = reached if tells_host else 0
        if lane is Lane.COMPUTE:
            for other in (lane, Lane.REDUCE):
                if other in awaited:
                    wait_for(self.streams[lane], self._address(other), awaited[other])
            others = {other: count for other, count in awaited.items() if other is not lane}
            for number, pair in enumerate(DEVICE_PAIRS):
                awaited_here = (each for each in (pair.out, pair.back) if each in others)
                of_pair = {int(each): others[each] for each in awaited_here}
                told = 0 if number else reached
                if told or of_pair:
                    meet(self._counts, int(lane), told, of_pair)
            of_host = {int(each): others[each] for each in FILE_LANES if each in others}
            if told_there or of_host:
                meet(self.counts_with_host().words, int(lane), told_there, of_host)
            return
        if reached:
            _write(self.streams[lane], self._address(lane), reached)
        if told_there:
            _write(self.streams[lane], self.counts_with_host().address(lane), reached)
        for other, count in awaited.items():
            wait_for(self.streams[lane], self._address(other), count)

    def upload(self, graph: torch.cuda.CUDAGraph) -> None:
        """Upload a graph to the device. Its launch then waits for no other work of the device."""
        stream = self._replay_streams[0].cuda_stream
        _checked(driver.cuGraphUpload(graph.raw_cuda_graph_exec(), stream))

    def wait(self) -> None:
        """Wait until few of the launches issued last are left. More may then be queued.

        After the last launch the GPU would idle for 0.7 to 1.7 ms while the host issues the next
        segment. The host sleeps: spinning keeps a core busy, and steps take the same time.
        """
        self._low_water.synchronize()

    def issue(self, segment: GraphSegment) -> None:
        """Wait for the low-water event of the segment before, then replay this one beside it.

        Its sums follow.
        """
        self.wait()
        if segment.graph is not None:
            with torch.cuda.stream(self._replay_streams[0]):
                segment.graph.replay()
            self._replay_streams.rotate()
        if segment.low_water is not None:
            self._low_water = segment.low_water
        for each in segment.sums:
            stream = self.streams[Lane.REDUCE]
            for lane, count in each.awaited.items():
                wait_for(stream, self._address(lane), count)
            with torch.cuda.stream(stream):
                each.run()
            _write(stream, self._address(Lane.REDUCE), each.reached)

    def _address(self, lane: Lane) -> int:
        if lane in FILE_LANES:
            return self.counts_with_host().address(lane)
        return self._counts[lane.value].data_ptr()


@cache
def lanes_of(device: torch.device) -> Lanes:
    """The lanes of `device`, which must have an index."""
    return Lanes(device)


def _one_at_a_time() -> bool:
    """Whether CUDA_LAUNCH_BLOCKING makes the host wait for each launch."""
    return os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0"


def are_independent_queues(
    streams: Sequence[torch.cuda.Stream], replay_streams: Iterable[torch.cuda.Stream]
) -> bool:
    """Whether a graph's branches, captured on `streams`, run while other branches wait for them.

    Branches may share one of the GPU's queues. All do where CUDA_DEVICE_MAX_CONNECTIONS is 1. A
    branch that waits at the head of a queue for another of that queue would wait forever.
    `replay_streams` launch the graph.
    """
    reached = torch.zeros(len(streams), dtype=torch.int32, pin_memory=True)
    addresses = [each.data_ptr() for each in reached]
    main, graph = streams[0], torch.cuda.CUDAGraph()
    with (
        capture(graph, main, torch.cuda.graph_pool_handle()),
        fork_join(main, streams[1:]),
    ):
        for number, stream in enumerate(streams):
            for address in addresses[number + 1 :]:
                wait_for(stream, address, 1)
            _write(stream, addresses[number], 1)
    return all(_ends(graph, stream, reached) for stream in replay_streams)


def _ends(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, reached: torch.Tensor) -> bool:
    """Whether the graph ends by its own writes. Otherwise the host writes for it."""
    reached.zero_()
    with torch.cuda.stream(stream):
        graph.replay()
    end = monotonic() + PATIENCE_S
    while not (ended := stream.query()) and monotonic() < end:
        pass
    reached.fill_(1)
    stream.synchronize()
    return ended


def num_copies(stream: torch.cuda.Stream) -> int:
    """Number of copies and memsets in the capture of `stream` up to now."""
    types = driver.CUgraphNodeType
    copying = {types.CU_GRAPH_NODE_TYPE_MEMCPY, types.CU_GRAPH_NODE_TYPE_MEMSET}
    _, _, graph, *_ = _checked(driver.cuStreamGetCaptureInfo(stream.cuda_stream))
    _, count = _checked(driver.cuGraphGetNodes(graph))
    nodes, _ = _checked(driver.cuGraphGetNodes(graph, count))
    return sum(_checked(driver.cuGraphNodeGetType(node))[0] in copying for node in nodes)


def wait_for(stream: torch.cuda.Stream, address: int, count: int) -> None:
    """Make later work on the stream wait until the int32 at `address` is at least `count`."""
    at_least = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
    _checked(driver.cuStreamWaitValue32(stream.cuda_stream, address, count, at_least))


def _write(stream: torch.cuda.Stream, address: int, count: int) -> None:
    _checked(driver.cuStreamWriteValue32(stream.cuda_stream, address, count, 0))


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values that a driver call returned. Raises DeviceError for a bad status."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"the GPU refused what lets lanes wait for one another: {status.name}")
    return tuple(values)
