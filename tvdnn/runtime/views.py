"""Views: the bytes of arena and slab, and the rows of buffers as tensors over these bytes."""

from dataclasses import dataclass
from typing import Final

import torch

from ..graph import Buffer, in_form
from ..ops.operator import TORCH_DTYPES
from ..planner.ir.schedule import Operand, Space

NO_COUNTS: Final = torch.empty(0, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class ByteViews:
    """The device arena and the pinned slab, as bytes, and the counts of packed codes."""

    arena: torch.Tensor
    slab: torch.Tensor
    counts: torch.Tensor = NO_COUNTS  # int32, on the device

    def view(self, operand: Operand, buffer: Buffer) -> torch.Tensor:
        """The rows of the operand, or their codes, as a tensor."""
        held = in_form(buffer, operand.form)
        flat = self.bytes_of(operand).view(TORCH_DTYPES[held.dtype])
        return flat.view(operand.stop - operand.start, *held.shape[1:])

    def bytes_of(self, operand: Operand) -> torch.Tensor:
        """The bytes of the operand."""
        space = self.arena if operand.space is Space.ARENA else self.slab
        return space.narrow(0, operand.offset, operand.nbytes)
