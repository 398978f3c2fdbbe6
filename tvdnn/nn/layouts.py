"""Layouts: how torch's tensors become the contiguous ones of the kernels, and results go back."""

from dataclasses import dataclass

import torch
from torch import Tensor


class Layout:
    """Torch's order of the dimensions, without gaps: for kernels that know no channels."""

    result = "y"  # the value or buffer of the op that is handed out
    is_loss = False

    def enter(self, x: Tensor) -> Tensor:
        """`x`, or a gradient of the same shape, as kernels read it. No copy where it lies so."""
        return x.contiguous()

    def back(self, dx: Tensor, dy: Tensor) -> Tensor:
        """The gradient that kernels have made of `dy`, in torch's order."""
        return dx

    def leave(self, y: Tensor, x: Tensor) -> Tensor:
        """The result in torch's order and in the memory format of `x`. It is no view."""
        return y if x.is_contiguous() else torch.empty_like(x).copy_(y)


class ChannelsLast(Layout):
    """[N, ..., C] of torch's [N, C, ...]."""

    def enter(self, x: Tensor) -> Tensor:
        if x.dim() == 4:
            return x.permute(0, 2, 3, 1).contiguous()
        return x.contiguous() if x.dim() == 2 else x.movedim(1, -1).contiguous()

    def back(self, dx: Tensor, dy: Tensor) -> Tensor:
        if dx.dim() == 4:
            return dx.permute(0, 3, 1, 2)
        return dx if dx.dim() == 2 else dx.movedim(-1, 1)

    def leave(self, y: Tensor, x: Tensor) -> Tensor:
        y = self.back(y, y)
        made = y.contiguous() if x.is_contiguous() else y
        return owned(made) if made._is_view() else made  # as that of one channel is, or one pixel


@dataclass(frozen=True, slots=True)
class Rows(Layout):
    """[..., F] of the last `dims` dimensions."""

    dims: int

    def enter(self, x: Tensor) -> Tensor:
        return x.contiguous().view(*(x.shape[: -self.dims] or (1,)), -1)

    def back(self, dx: Tensor, dy: Tensor) -> Tensor:
        return dx.view(dy.shape)

    def leave(self, y: Tensor, x: Tensor) -> Tensor:
        y = y.view(x.shape)
        return owned(y) if x.is_contiguous() else torch.empty_like(x).copy_(y)


class Total(ChannelsLast):
    """A loss: of what the op hands out, the total is the first value."""

    is_loss = True

    def scale(self, dy: Tensor) -> Tensor:
        """What the kernels multiply the gradient by, float32 [1]."""
        return dy.float().reshape(1)

    def leave(self, y: Tensor, x: Tensor) -> Tensor:
        return y[0].to(x.dtype, copy=True)


class LossOfEach(Total):
    """A loss of each row or pixel: the first of the two terms that the kernels leave of it."""

    result = "op rows"

    def scale(self, dy: Tensor) -> Tensor:
        return dy.new_ones(1, dtype=torch.float32)

    def enter(self, x: Tensor) -> Tensor:
        return ChannelsLast.enter(self, x).flatten(0, -2)

    def back(self, dx: Tensor, dy: Tensor) -> Tensor:
        dx = dx.view(*dy.shape, -1) * dy[..., None]
        return ChannelsLast.back(self, dx, dy)

    def leave(self, y: Tensor, x: Tensor) -> Tensor:
        return y[:, 0].view(len(x), *x.shape[2:]).to(x.dtype, copy=True)


AS_IS, CHANNELS_LAST, TOTAL, LOSS_OF_EACH = Layout(), ChannelsLast(), Total(), LossOfEach()


def elementwise(x: Tensor) -> Layout:
    """The layout in which an elementwise op copies no dense `x`."""
    if x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        return AS_IS
    return CHANNELS_LAST


def dense(x: Tensor) -> Tensor:
    """`x` without gaps between its elements. No copy if it is contiguous or channels_last."""
    if x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last):
        return x
    return x.contiguous()


def owned(view: Tensor) -> Tensor:
    """The same elements as a tensor that is no view.

    For what an autograd function makes and returns: torch lets nobody write in place into a view.
    """
    whole = view.new_empty(0)
    return whole.set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())
