"""The arena: one device allocation for a network's schedules, grown between steps."""

import torch

from ..errors import DeviceError
from ..units import format_bytes
from .cpu_executor import POISON


class Arena:
    """Bytes on `device`.

    `generation` counts moves. After a move, CUDA graphs must be captured again. A caller drops its
    views before the arena grows. Otherwise the old bytes stay allocated beside the new ones.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generation = 0
        self.bytes = torch.empty(0, dtype=torch.uint8, device=device)

    def reserve(self, nbytes: int) -> None:
        """Grow to at least `nbytes` bytes. The old bytes are freed first.

        Raises DeviceError where the device has fewer bytes free.
        """
        if nbytes <= self.bytes.numel():
            return
        self.close()
        try:
            self.bytes = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except torch.cuda.OutOfMemoryError as error:
            free, _ = torch.cuda.mem_get_info(self.device)
            raise DeviceError(
                f"the arena needs {format_bytes(nbytes)} and the device has {format_bytes(free)} "
                "free; pass a budget below that, or free device memory"
            ) from error
        if self.device.type == "cpu":
            self.bytes.fill_(POISON)
        self.generation += 1

    @property
    def nbytes(self) -> int:
        return self.bytes.numel()

    def close(self) -> None:
        """Give the bytes back."""
        self.generation += 1
        self.bytes = torch.empty(0, dtype=torch.uint8, device=self.device)
