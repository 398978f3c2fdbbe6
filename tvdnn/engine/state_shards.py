"""Optimizer state of which each process of a group has a shard (ZeRO stage 1).

Each has a piece of the state of every parameter, and the same on every GPU whichever networks,
batches and buckets it trains (`kernels/optim/pieces.py`).
"""

import torch
from torch import Tensor

from ..errors import EngineError
from ..kernels.optim.pieces import piece_numel, piece_of
from ..ops.builder import Ranks
from ..ops.pieces import GATHERED_NBYTES
from ..ops.process_sums import flat
from .process_group import TrainingGroup


class StateShards:
    """The pieces of state that this process of a group has."""

    def __init__(self, group: TrainingGroup) -> None:
        self._group = group

    def numel(self, param: Tensor) -> int:
        """Elements of each piece of the state of a parameter."""
        numel: int = piece_numel(param.numel(), self._group.size)
        return numel

    def of(self, tensor: Tensor) -> Tensor:
        """This process's piece of a dense tensor, shorter or empty at its end: a view."""
        piece: Tensor = piece_of(tensor, self._group.size, self._group.rank)
        return piece

    def take(self, piece: Tensor, param: Tensor, given: Tensor) -> None:
        """Copy this process's part of the whole state of a parameter into its piece."""
        laid_out = torch.empty_like(param, device=given.device, dtype=given.dtype).copy_(given)
        own = self.of(laid_out)
        piece[: own.numel()].copy_(own)

    def gathered(self, piece: Tensor, param: Tensor) -> Tensor:
        """The whole state of a parameter, in host memory. All processes call it together."""
        size = self._group.size
        all_pieces = torch.empty(size, piece.numel(), dtype=piece.dtype)
        at_once = max(1, GATHERED_NBYTES // (size * piece.element_size()))
        for start in range(0, piece.numel(), at_once):
            part = piece[start : start + at_once]
            gathered = part.new_empty(size, part.numel())
            gathered[self._group.rank] = part
            self._gather(gathered.view(-1))
            all_pieces[:, start : start + at_once] = gathered.cpu()
        found = torch.empty_like(param, device="cpu", dtype=piece.dtype)
        flat(found).copy_(all_pieces.view(-1)[: param.numel()])
        return found

    def _gather(self, values: Tensor) -> None:
        try:
            self._group.gather(values)
        except EngineError as error:
            raise EngineError(f"{error}. All processes call state_dict together") from error

    def spread(self, param: Tensor, room: Tensor) -> None:
        """Give all processes the pieces of a parameter that each has updated.

        `room`, in the parameter's layout, is written over. It has room for all pieces behind it.
        """
        pieces = room.as_strided((self._group.size * self.numel(param),), (1,))
        own = self.of(param)
        start = self._group.rank * self.numel(param)
        pieces[start : start + own.numel()].copy_(own)
        self._group.gather(pieces)
        flat(param).copy_(pieces[: param.numel()])

    def room_like(self, tensor: Tensor) -> Tensor:
        """Zeros in the layout of a tensor, with room for all pieces."""
        strides = torch.empty_like(tensor, device="meta").stride()
        room = tensor.new_zeros(self._group.size * self.numel(tensor))
        return room.as_strided(tensor.shape, strides)


def state_shards(group: TrainingGroup | None, ranks: Ranks | None) -> StateShards | None:
    """The shards of a group whose processes have each a part of the optimizer's state."""
    return StateShards(group) if group is not None and ranks is not None and ranks.sharded else None
