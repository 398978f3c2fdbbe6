"""Views: the bytes of arena and slab, and the rows of buffers as tensors over these bytes."""

from dataclasses import dataclass

import torch

from ..graph import Buffer, in_form
from ..ops.operator import TORCH_DTYPES
from ..planner.ir.schedule import Operand, Space


@dataclass(frozen=True, slots=True)
class ByteViews:
    """The device arena and the pinned slab, as bytes."""

    arena: torch.Tensor
    slab: torch.Tensor

    def view(self, operand: Operand, buffer: Buffer) -> torch.Tensor:
        """The rows of the operand, or their codes, as a tensor."""
        held = in_form(buffer, operand.form)
        flat = self.bytes_of(operand).view(TORCH_DTYPES[held.dtype])
        return flat.view(operand.stop - operand.start, *held.shape[1:])

    def bytes_of(self, operand: Operand) -> torch.Tensor:
        """The bytes of the operand."""
        space = self.arena if operand.space is Space.ARENA else self.slab
        return space.narrow(0, operand.offset, operand.nbytes)
