"""Views: the bytes of arena, slab and peer, and the rows of buffers as tensors over these bytes."""

from dataclasses import dataclass
from typing import Final

import torch

from ..graph import Buffer, in_form
from ..ops.operator import TORCH_DTYPES
from ..planner.ir.schedule import Operand, Space
from .section_file import SectionFile

NO_COUNTS: Final = torch.empty(0, dtype=torch.int32)
NO_BYTES: Final = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class ByteViews:
    """The spaces of a schedule: all but the file as bytes. And the counts of packed codes."""

    arena: torch.Tensor
    slab: torch.Tensor
    counts: torch.Tensor = NO_COUNTS  # int32, on the device
    peer: torch.Tensor = NO_BYTES  # the arena on another GPU
    file: SectionFile | None = None

    def view(self, operand: Operand, buffer: Buffer) -> torch.Tensor:
        """The rows of the operand, or their codes, as a tensor."""
        held = in_form(buffer, operand.form)
        flat = self.bytes_of(operand).view(TORCH_DTYPES[held.dtype])
        return flat.view(operand.stop - operand.start, *held.shape[1:])

    def bytes_of(self, operand: Operand) -> torch.Tensor:
        """The bytes of the operand."""
        spaces = {Space.ARENA: self.arena, Space.SLAB: self.slab, Space.PEER: self.peer}
        return spaces[operand.space].narrow(0, operand.offset, operand.nbytes)


def stand_ins(
    tensors: tuple[torch.Tensor | None, ...], room: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """Tensors of these forms over the first bytes of `room`, or new ones where they are larger."""
    return tuple(None if each is None else _stand_in(each, room) for each in tensors)


def _stand_in(tensor: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes > room.numel():
        return torch.empty_like(tensor)
    flat = room.narrow(0, 0, nbytes).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())
