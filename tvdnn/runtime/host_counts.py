"""Host counts: words of pinned memory by which lanes of a device and of the host await each other.

A device writes and reads them in the order of its streams, a thread of the host at any time.
"""

from typing import Final

import torch

from ..planner.ir.schedule import LANE_PAIRS, Lane

# The lanes whose copies threads of the host make.
FILE_LANES: Final = tuple(
    lane for pair in LANE_PAIRS if not pair.on_device for lane in (pair.out, pair.back)
)
# The word behind the lanes' counts: the number of the present run. Device lanes begin the runs of
# all schedules one after the other, and each finds all counts at 0.
RUN: Final = len(Lane)


class HostCounts:
    """By lane, the number of its last ended step, counted from 1; and the present run's number."""

    def __init__(self) -> None:
        pinned = torch.cuda.is_available()
        self.words = torch.zeros(len(Lane) + 1, dtype=torch.int32, pin_memory=pinned)
        self._held = self.words.numpy()
        self.runs = 0  # that were begun

    def address(self, word: int) -> int:
        """Where a word lies, for the device as for the host."""
        return self.words.data_ptr() + word * self.words.element_size()

    def get(self, word: int) -> int:
        return int(self._held[word])

    def set(self, word: int, value: int) -> None:
        self._held[word] = value
