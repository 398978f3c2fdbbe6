"""Staging: host batches are copied to the device beside the steps, in two buffers each."""

from dataclasses import dataclass

import torch

BUFFERS = 2


@dataclass(slots=True)
class _Slot:
    """A device tensor, and the event after which it may be overwritten."""

    tensor: torch.Tensor
    free: torch.cuda.Event


class Staging:
    """Copies of host tensors on `device`, made on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._slots: dict[tuple[object, ...], list[_Slot]] = {}
        self._used: list[_Slot] = []

    def nbytes_for(self, *values: torch.Tensor) -> int:
        """Device bytes that staging these host tensors takes."""
        away = [value for value in values if value.device != self._device]
        return BUFFERS * sum(value.numel() * value.element_size() for value in away)

    def put(self, value: torch.Tensor, name: str) -> torch.Tensor:
        """A device copy of `value` for work on the current stream.

        Call `release` after that work is issued. Values of one `name` use its buffers in turn.
        """
        if value.device == self._device:
            return value
        slot = self._next_slot(value, name)
        assert self._stream is not None
        self._stream.wait_event(slot.free)
        with torch.cuda.stream(self._stream):
            slot.tensor.copy_(value, non_blocking=True)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._used.append(slot)
        return slot.tensor

    def release(self) -> None:
        """Allow the buffers to be overwritten once the work issued up to now is done."""
        for slot in self._used:
            slot.free.record(torch.cuda.current_stream(self._device))
        self._used.clear()

    def _next_slot(self, value: torch.Tensor, name: str) -> _Slot:
        kind, form = (name, value.dtype), (tuple(value.shape), value.stride())
        slots = self._slots.get(kind, [])
        if not slots or (tuple(slots[0].tensor.shape), slots[0].tensor.stride()) != form:
            slots = self._slots[kind] = []  # a new shape replaces the buffers of the last one
            tensors = (torch.empty_like(value, device=self._device) for _ in range(BUFFERS))
            slots += [_Slot(tensor, torch.cuda.Event()) for tensor in tensors]
            assert self._stream is not None
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        slots.append(slots.pop(0))
        return slots[-1]
