"""Step memory: arena, slab, file and a peer's arena, which all schedules of a network share."""

from collections.abc import Callable

import torch

from ..planner.ir.schedule import Schedule
from ..runtime.arena import Arena
from ..runtime.host_slab import Slab
from ..runtime.section_file import SectionFile
from .build import Progress
from .engine_request import EngineRequest
from .peak_memory import PeakMemory


class StepMemory:
    """The memory of one engine on a device.

    Raises FileError where the folder of a file cannot be written.
    """

    def __init__(self, requested: EngineRequest, device: torch.device) -> None:
        self._requested = requested
        self.slab = requested.slab or Slab(pinned=device.type == "cuda")
        self.file = _file_of(requested)
        self.arena = Arena(device)
        self.peer = Arena(device)  # stands in for that of another GPU
        self.peak: PeakMemory | None = None  # a trainer's, which has torch's counter to itself

    def fit(self, schedule: Schedule, suspend: Callable[[], None], progress: Progress) -> None:
        """Grow to the bytes of `schedule`. `suspend` has all runners let the old bytes go."""
        nbytes, pages = max(1, schedule.arena_nbytes), schedule.pages
        slab_nbytes, peer_nbytes = schedule.slab_nbytes, schedule.peer_nbytes
        fits = self.slab.nbytes >= slab_nbytes and self.peer.nbytes >= peer_nbytes
        if not fits or not self.arena.holds(nbytes, pages):
            progress("allocating", 0.0)
            if self.peak is not None:
                self.peak.note(self.arena)
            suspend()
            self.arena.reserve(nbytes, pages)
            self.slab.reserve(max(1, slab_nbytes))
            self.peer.reserve(peer_nbytes)
            if self.peak is not None:
                self.peak.count_anew()
            progress("allocating", 1.0)
        if self.file is not None:
            self.file.reserve(schedule.file_nbytes)

    def close(self) -> None:
        """Give back the peer's arena, and slab and file where they are the engine's own."""
        self.peer.close()
        if self._requested.slab is None:
            self.slab.close()
        if self.file is not None and self.file is not self._requested.file:
            self.file.close()


def _file_of(requested: EngineRequest) -> SectionFile | None:
    given = requested.file
    return given if given is None or isinstance(given, SectionFile) else SectionFile(given)
