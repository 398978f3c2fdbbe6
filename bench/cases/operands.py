"""The operands of a launch, of any size and on any device.

The device is the CPU for Triton's interpreter, the meta device to compile, a GPU to measure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import nan, prod
from typing import Any

import torch
from torch import Tensor

BF16, F32, U8 = torch.bfloat16, torch.float32, torch.uint8
Shape = tuple[int, ...]


def whole(output: Tensor) -> Tensor:
    return output


def padding_beside(channels: int, *, padded: bool = False, **_: Any) -> dict[str, Shape]:
    """The settings of an operand that lies in front of the channels of a padded map, if `padded`.

    Other settings of a launch do not matter.
    """
    return {"beside": (0, -channels % 8)} if padded else {}


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that a launch writes."""

    tensor: Tensor
    buffer: Tensor  # the flat memory around it
    start: Tensor | None  # its values before the launch, where the launch reads them
    part: Callable[[Tensor], Tensor]  # cuts out what the launch writes
    compared: Callable[[Tensor], Tensor]  # of that part, what the reference defines


class Operands:
    """Makes operands on one device, and keeps a record of the outputs among them.

    An output lies in a buffer with `margin` elements on both sides.
    """

    def __init__(
        self, device: torch.device, generator: torch.Generator | None = None, margin: int = 0
    ) -> None:
        self.device, self.generator, self.margin = device, generator, margin
        self.written: list[Written] = []

    @property
    def holds_values(self) -> bool:
        return self.device.type != "meta"

    def randn(self, *shape: int, dtype: torch.dtype = F32, beside: Shape = ()) -> Tensor:
        """Normal values. `beside`: channels of a wider map before and after these."""
        before, after = beside or (0, 0)
        wide = (*shape[:-1], shape[-1] + before + after)
        made = torch.empty(wide, device=self.device)
        if self.holds_values:
            made.normal_(generator=self.generator)  # in bfloat16 torch 2.11 draws zeros
        made = made.to(dtype)
        return made[..., before : before + shape[-1]] if beside else made

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=self.device)
        return made.random_(high, generator=self.generator) if self.holds_values else made

    def full(self, value: float, *shape: int, dtype: torch.dtype = F32) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def out(
        self,
        *shape: int,
        dtype: torch.dtype = F32,
        beside: Shape = (),
        written: Callable[[Tensor], Tensor] = whole,
        compared: Callable[[Tensor], Tensor] = whole,
    ) -> Tensor:
        """An output that holds poison, or a range of channels of a wider one."""
        before, after = beside or (0, 0)
        wide = (*shape[:-1], shape[-1] + before + after)
        buffer = torch.empty(prod(wide) + 2 * self.margin, dtype=dtype, device=self.device)
        tensor = buffer[self.margin : self.margin + prod(wide)].view(wide)
        tensor = tensor[..., before : before + shape[-1]] if beside else tensor
        self.written.append(Written(tensor, buffer, None, written, compared))
        if self.holds_values:
            poison(buffer)
        return tensor

    def updated(self, start: Tensor, compared: Callable[[Tensor], Tensor] = whole) -> Tensor:
        """A copy of `start` that a launch reads and writes."""
        buffer = torch.empty(start.numel() + 2 * self.margin, dtype=start.dtype, device=self.device)
        tensor = buffer[self.margin : self.margin + start.numel()].view(start.shape)
        self.written.append(Written(tensor, buffer, start, whole, compared))
        if self.holds_values:
            poison(buffer)
        tensor.copy_(start)
        return tensor

    def restore(self) -> None:
        """Give the tensors that launches update their first values again."""
        for each in self.written:
            if each.start is not None:
                each.tensor.copy_(each.start)

    def reset(self, value: float | None = None) -> None:
        """Restore what was before the first launch, with `value` in outputs instead of poison."""
        for each in self.written:
            if value is None:
                poison(each.buffer)
            else:
                each.buffer.fill_(value)
        self.restore()


def poison(tensor: Tensor) -> Tensor:
    """Fill a tensor with NaN, or with the largest integer."""
    wide = tensor.dtype.is_floating_point
    return tensor.fill_(nan if wide else torch.iinfo(tensor.dtype).max)
