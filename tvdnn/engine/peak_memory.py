"""The most device bytes that a trainer's steps take, by torch's counter and the arena's pages."""

import gc

import torch
from torch import nn

from ..runtime.arena import Arena


class PeakMemory:
    """Counts from its making, without what is allocated then beside a module's own tensors.

    torch's counter does not have pages, so it begins anew where an arena moves: an earlier
    allocation and later pages are not in memory together.
    """

    def __init__(self, module: nn.Module) -> None:
        self._device = _device_of(module)
        self._earlier_nbytes = self._foreign_nbytes = 0
        if self._device is not None:
            gc.collect()  # tensors of a former trainer, if freed later, would be taken off the peak
            torch.cuda.reset_peak_memory_stats(self._device)
            self._foreign_nbytes = torch.cuda.memory_allocated(self._device) - _own_nbytes(module)

    def nbytes(self, arena: Arena) -> int:
        """The most bytes so far; 0 where the module is not on a GPU."""
        if self._device is None:
            return 0
        by_torch = torch.cuda.max_memory_allocated(self._device) - self._foreign_nbytes
        return max(self._earlier_nbytes, by_torch + arena.nbytes_outside_torch)

    def note(self, arena: Arena) -> None:
        """Keep the most bytes so far, before `arena` moves."""
        self._earlier_nbytes = self.nbytes(arena)

    def count_anew(self) -> None:
        """Count from here on, beside what is noted."""
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)

    def forget(self) -> None:
        """Count from here on alone."""
        self._earlier_nbytes = 0
        self.count_anew()


def _cuda_tensors(module: nn.Module) -> list[torch.Tensor]:
    return [
        each for each in (*module.parameters(), *module.buffers()) if each.device.type == "cuda"
    ]


def _device_of(module: nn.Module) -> torch.device | None:
    return next((each.device for each in _cuda_tensors(module)), None)


def _own_nbytes(module: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in _cuda_tensors(module))
