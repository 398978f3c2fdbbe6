"""Lanes: what is launched, offloaded and prefetched on a device, and how far each has come.

Lanes wait for one another by counts in device memory: launches by a kernel, copies by the CUDA
driver's stream memory operations. As edges of one graph such waits slow copies down: its nodes are
spread over many streams, and copies get 47 to 49 of the link's 55 GB/s even while no kernel runs
(H200, 2026-11-22).
"""

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import Lock
from time import monotonic
from typing import Any, Final

import torch

from ..errors import DeviceError
from ..kernels.copy.semaphore import meet
from ..planner.ir.schedule import Lane
from ..planner.timing.simulate import COPY_LANES
from .capture import capturing, forked

PATIENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Window:
    """Steps that are issued together: a graph with a branch for each lane that has some.

    Where launches and copies wait for one another by counts, it records `few_left` when few of its
    launches are left to run.
    """

    graph: torch.cuda.CUDAGraph
    few_left: torch.cuda.Event | None


class Lanes:
    """Streams that all schedules on a device share, and how far each lane has come.

    On `streams` work is captured, or issued step by step. Who does so, or issues windows, holds
    `lock` until all of it is there: so no two schedules wait for each other.
    """

    def __init__(self, device: torch.device) -> None:
        self.streams: Mapping[Lane, torch.cuda.Stream] = {
            lane: torch.cuda.Stream(device) for lane in Lane
        }
        self.lock = Lock()
        self._turns = deque(torch.cuda.Stream(device) for _ in range(2))
        self._few_left = torch.cuda.Event()
        self._counts = torch.zeros(len(Lane), dtype=torch.int32, device=device)
        with torch.cuda.device(device):
            meet(self._counts, 0, (0, 0))  # loads the kernel, for which nothing may wait
        torch.cuda.synchronize(device)
        self.apart = not _one_at_a_time() and apart(list(self.streams.values()), self._turns)

    def begin(self) -> None:
        """Count from 0 again, in the current stream's order, once no window runs."""
        current = torch.cuda.current_stream(self._counts.device)
        for stream in self._turns:
            current.wait_stream(stream)
        self._counts.zero_()
        for stream in self._turns:
            stream.wait_stream(current)

    def end(self) -> None:
        """Let the current stream go on once no window runs."""
        for stream in self._turns:
            torch.cuda.current_stream(self._counts.device).wait_stream(stream)

    def meet(self, lane: Lane, reached: int, awaited: Mapping[Lane, int]) -> None:
        """Tell how far the lane has come (0: nothing), then wait until others have come so far.

        Launches do so by a kernel, copies by the stream's memory operations. For its own count, in
        the window before, each waits by these: a kernel would keep a launch from the whole GPU.
        """
        if lane is Lane.COMPUTE:
            if lane in awaited:
                wait_for(self.streams[lane], self._address(lane), awaited[lane])
            first, second = (awaited.get(other, 0) for other in COPY_LANES)
            if reached or first or second:
                meet(self._counts, reached, (first, second))
            return
        if reached:
            _write(self.streams[lane], self._address(lane), reached)
        for other, count in awaited.items():
            wait_for(self.streams[lane], self._address(other), count)

    def upload(self, graph: torch.cuda.CUDAGraph) -> None:
        """Make a graph ready, so that its launch waits for nothing that the device does."""
        stream = self._turns[0].cuda_stream
        _checked(_driver().cuGraphUpload(graph.raw_cuda_graph_exec(), stream))

    def wait(self) -> None:
        """Wait until few of the launches issued last are left, behind which more may be queued.

        After the last of them the GPU would idle while the host issues the next, 0.7 to 1.7 ms. The
        host sleeps: spinning would keep a core busy all the time, and steps take the same.
        """
        self._few_left.synchronize()

    def issue(self, window: Window) -> None:
        """Replay a window beside the one before; wait before that."""
        self.wait()
        with torch.cuda.stream(self._turns[0]):
            window.graph.replay()
        self._turns.rotate()
        if window.few_left is not None:
            self._few_left = window.few_left

    def _address(self, lane: Lane) -> int:
        return self._counts[lane.value].data_ptr()


@cache
def lanes_of(device: torch.device) -> Lanes:
    """The lanes of a device (with its index)."""
    return Lanes(device)


def _one_at_a_time() -> bool:
    """Whether the host waits for each launch, so that none is there for another to wait for."""
    return os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0"


def apart(streams: Sequence[torch.cuda.Stream], turns: Iterable[torch.cuda.Stream]) -> bool:
    """Whether a graph's branches, captured on `streams`, go on while others wait for them.

    They may share one of the GPU's queues, as all do where CUDA_DEVICE_MAX_CONNECTIONS is 1: what
    waits at its head for another of them would wait forever. `turns` are what it is launched on.
    """
    reached = torch.zeros(len(streams), dtype=torch.int32, pin_memory=True)
    addresses = [each.data_ptr() for each in reached]
    main, graph = streams[0], torch.cuda.CUDAGraph()
    with (
        capturing(graph, main, torch.cuda.graph_pool_handle()),
        forked(main, streams[1:]),
    ):
        for number, stream in enumerate(streams):
            for address in addresses[number + 1 :]:
                wait_for(stream, address, 1)
            _write(stream, addresses[number], 1)
    return all(_ends(graph, turn, reached) for turn in turns)


def _ends(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, reached: torch.Tensor) -> bool:
    """Whether a graph ends of itself that waits for what it writes; if not, it is let go."""
    reached.zero_()
    with torch.cuda.stream(stream):
        graph.replay()
    end = monotonic() + PATIENCE_S
    while not (ended := stream.query()) and monotonic() < end:
        pass
    reached.fill_(1)
    stream.synchronize()
    return ended


def count_copies(stream: torch.cuda.Stream) -> int:
    """How often what is captured from the stream so far copies or clears memory."""
    types = _driver().CUgraphNodeType
    copying = {types.CU_GRAPH_NODE_TYPE_MEMCPY, types.CU_GRAPH_NODE_TYPE_MEMSET}
    _, _, graph, *_ = _checked(_driver().cuStreamGetCaptureInfo(stream.cuda_stream))
    _, count = _checked(_driver().cuGraphGetNodes(graph))
    nodes, _ = _checked(_driver().cuGraphGetNodes(graph, count))
    return sum(_checked(_driver().cuGraphNodeGetType(node))[0] in copying for node in nodes)


def wait_for(stream: torch.cuda.Stream, address: int, count: int) -> None:
    """Let what follows on the stream wait until the int32 at the address is at least `count`."""
    at_least = _driver().CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
    _checked(_driver().cuStreamWaitValue32(stream.cuda_stream, address, count, at_least))


def _write(stream: torch.cuda.Stream, address: int, count: int) -> None:
    _checked(_driver().cuStreamWriteValue32(stream.cuda_stream, address, count, 0))


def _driver() -> Any:
    return import_module("cuda.bindings.driver")  # where there is no GPU it may be missing


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call of the driver gave besides its status."""
    status, *values = result
    if status != _driver().CUresult.CUDA_SUCCESS:
        raise DeviceError(f"the GPU refused what lets lanes wait for one another: {status.name}")
    return tuple(values)
