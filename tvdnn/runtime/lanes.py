"""Lanes: a device's three streams, and how far the work on each has come.

Lanes wait for one another by counts in device memory: launches by a kernel, copies by the CUDA
driver's stream memory operations. As edges of one graph such waits slow copies down: its nodes are
spread over many streams, and copies get 47 to 49 of the link's 55 GB/s even while no kernel runs
(H200, 2026-11-22).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import Lock
from time import monotonic
from typing import Any, Final

import torch

from ..errors import DeviceError
from ..kernels.counts import meet
from ..planner.schedule import Lane
from ..planner.simulate import COPY_LANES

PATIENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Window:
    """Steps to be issued together: a graph for each lane that has some of them.

    The graph of launches, if there is one, records `few_left` when few of them are left to run.
    """

    graphs: Mapping[Lane, torch.cuda.CUDAGraph]
    few_left: torch.cuda.Event | None


class Lanes:
    """Streams that all schedules on a device share, and their counts.

    Who captures or issues work on them holds `lock` until each lane has its part: so all lanes have
    the same order, and no two schedules wait for each other.
    """

    def __init__(self, device: torch.device) -> None:
        self.streams: Mapping[Lane, torch.cuda.Stream] = {
            lane: torch.cuda.Stream(device) for lane in Lane
        }
        self.lock = Lock()
        self._few_left = torch.cuda.Event()
        self._counts = torch.zeros(len(Lane), dtype=torch.int32, device=device)
        with torch.cuda.device(device):
            meet(self._counts, 0, 0, (0, 0))  # loads the kernel, for which nothing may wait
        torch.cuda.synchronize(device)
        self.apart = not _one_at_a_time() and apart(list(self.streams.values()))

    def reset(self) -> None:
        """Count from 0 again, in the current stream's order, once nothing runs on the lanes."""
        current = torch.cuda.current_stream(self._counts.device)
        for stream in self.streams.values():
            current.wait_stream(stream)
        self._counts.zero_()

    def meet(self, lane: Lane, reached: int, awaited: Mapping[Lane, int]) -> None:
        """Tell how far the lane has come (0: nothing), then wait until others have come so far.

        Launches do so by a kernel, copies by the stream's memory operations.
        """
        if lane is Lane.COMPUTE:
            first, second = (awaited.get(other, 0) for other in COPY_LANES)
            meet(self._counts, lane.value, reached, (first, second))
            return
        if reached:
            _write(self.streams[lane], self._address(lane), reached)
        for other, count in awaited.items():
            wait_for(self.streams[lane], self._address(other), count)

    def upload(self, graph: torch.cuda.CUDAGraph, lane: Lane) -> None:
        """Make a graph ready, so that its launch waits for nothing that the device does."""
        stream = self.streams[lane].cuda_stream
        _checked(_driver().cuGraphUpload(graph.raw_cuda_graph_exec(), stream))

    def wait(self) -> None:
        """Wait until few of the launches issued last are left, behind which no more may be queued.

        While many are, copies get 50 to 52 of the link's 55 GB/s either way, whatever the launches
        do, and be they of the next step: ResNet-50(256) in 9.1 GiB takes 44.4 ms a step so, and
        41.8 where none are queued behind others (H200, 2026-11-23). After the last of them the GPU
        would idle while the host issues the next, 1.1 to 1.7 ms a step. The host sleeps: spinning
        would keep a core busy all the time, and steps take the same.
        """
        self._few_left.synchronize()

    def issue(self, window: Window) -> None:
        """Replay a window's graphs, launches last, each on its lane's stream; wait before that."""
        self.wait()
        for lane in (*COPY_LANES, Lane.COMPUTE):
            if lane in window.graphs:
                with torch.cuda.stream(self.streams[lane]):
                    window.graphs[lane].replay()
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


def apart(streams: list[torch.cuda.Stream]) -> bool:
    """Whether work on each stream goes on while those before it wait for what is behind them.

    Streams may share one of the GPU's queues, as all do where CUDA_DEVICE_MAX_CONNECTIONS is 1:
    what waits at its head for another of them would wait forever.
    """
    reached = torch.zeros(len(streams), dtype=torch.int32, pin_memory=True)
    addresses = [each.data_ptr() for each in reached]
    for number, stream in enumerate(streams):
        for address in addresses[number + 1 :]:
            wait_for(stream, address, 1)
        _write(stream, addresses[number], 1)
    end = monotonic() + PATIENCE_S
    while not (passed := all(stream.query() for stream in streams)) and monotonic() < end:
        pass
    reached.fill_(1)  # lets go what still waits
    for stream in streams:
        stream.synchronize()
    return passed


def only_kernels(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether a graph that was kept when captured neither copies nor clears memory by itself."""
    types = _driver().CUgraphNodeType
    others = {types.CU_GRAPH_NODE_TYPE_MEMCPY, types.CU_GRAPH_NODE_TYPE_MEMSET}
    _, count = _checked(_driver().cuGraphGetNodes(graph.raw_cuda_graph()))
    nodes, _ = _checked(_driver().cuGraphGetNodes(graph.raw_cuda_graph(), count))
    return all(_checked(_driver().cuGraphNodeGetType(node))[0] not in others for node in nodes)


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
