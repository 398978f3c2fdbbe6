"""Formulas of tensors, made from the recorded calls of a traced forward."""

from collections.abc import Iterator, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from ..source_lines import location_text, source_location
from .attribute_tensors import AttributeTensor
from .formulas import Formula, FormulaCall, FormulaRead, FormulaSlot, NetworkDevice
from .functionalize import storage_of
from .meta_copies import MetaCopies
from .recorded_call import RecordedCall

META = torch.device("meta")
PLAIN = (
    *(Number, str, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)


class NoFormulaError(Exception):
    """Why no step could compute a tensor again."""


class FormulaBuilder:
    """Makes the formula of a tensor from the calls on which the tensor depends."""

    def __init__(
        self, meta_copies: MetaCopies, calls: Sequence[RecordedCall], device: torch.device
    ) -> None:
        self._names, self._calls, self._device = meta_copies.names, calls, device
        self._attributes = meta_copies.attribute_tensors
        of_modules = (*meta_copies.tensors.values(), *meta_copies.attribute_copies)
        self._module_storages = {*map(storage_of, of_modules)}
        self.made: list[Tensor] = []  # on the way to the tensor of a formula
        self._slots: dict[int, FormulaSlot] = {}
        self._reads: dict[int, FormulaRead] = {}
        self._attribute_reads: dict[int, AttributeTensor] = {}  # by the number of a slot

    def of(self, tensor: Tensor) -> Formula:
        """The formula of a tensor's present value."""
        kept = list(self.needed(tensor))[::-1]
        known: set[int] = set()
        unknown: list[RecordedCall] = []
        for call in kept:
            if any(self._is_unknown(each, known) for each in call.given):
                unknown.append(call)
            made = [each for each in call.made if isinstance(each, Tensor)]
            self.made += made
            known.update(map(id, made))
        calls = tuple(map(self._applied, kept))
        self._check(unknown, kept)
        result = self._slot(tensor)
        return Formula(
            tuple(self._reads.values()), self._attribute_reads, calls, result, at=source_location()
        )

    def needed(self, tensor: Tensor) -> Iterator[RecordedCall]:
        """The calls on which the tensor's present value depends, the last first."""
        ids, storages = {id(tensor)}, {storage_of(tensor)} - self._module_storages
        for call in reversed(self._calls):
            changed = [*call.written, *call.formed]
            changed += [each for each in call.made if isinstance(each, Tensor)]
            if any(id(each) in ids or storage_of(each) in storages for each in changed):
                yield call
                read = [each for each in call.given if isinstance(each, Tensor)]
                ids.update(map(id, read))
                storages |= set(map(storage_of, read)) - self._module_storages

    def _is_unknown(self, each: Any, known: set[int]) -> bool:
        places = (known, self._names, self._attributes)
        return isinstance(each, Tensor) and not any(id(each) in place for place in places)

    def _check(self, unknown: Sequence[RecordedCall], kept: Sequence[RecordedCall]) -> None:
        for call in unknown:
            raise NoFormulaError(
                f"the result of {call.name} on a tensor that is neither a parameter nor a buffer"
                f" (register it as a buffer){location_text(call.at)}"
            )
        for call in kept:
            others = [each for each in call.given if not _is_plain(each)]
            if others:
                raise NoFormulaError(
                    f"the result of {call.name} on a {type(others[0]).__name__}"
                    f"{location_text(call.at)}"
                )

    def _applied(self, call: RecordedCall) -> FormulaCall:
        args, kwargs = call.arguments_of([self._placed(each) for each in call.given])
        made = tuple(self._slot(each) if isinstance(each, Tensor) else None for each in call.made)
        return FormulaCall(call.function, args, kwargs, made, call.graded)

    def _placed(self, each: Any) -> Any:
        """The form of an argument in a formula."""
        if isinstance(each, Tensor):
            return self._slot(each)
        return NetworkDevice() if self._names_device(each) else each

    def _names_device(self, each: Any) -> bool:
        """Whether an argument names the network's device, or the meta device."""
        if not isinstance(each, (str, torch.device)):
            return False
        return str(each).partition(":")[0] in (META.type, self._device.type)

    def _slot(self, tensor: Tensor) -> FormulaSlot:
        slot = self._slots.setdefault(id(tensor), FormulaSlot(len(self._slots)))
        name = self._names.get(id(tensor))
        if name is not None:
            self._reads.setdefault(slot.number, FormulaRead(slot.number, name, tensor.dtype))
        elif id(tensor) in self._attributes:
            self._attribute_reads[slot.number] = self._attributes[id(tensor)]
        return slot


def _is_plain(each: Any) -> bool:
    if isinstance(each, slice):
        return all(map(_is_plain, (each.start, each.stop, each.step)))
    return isinstance(each, (*PLAIN, Tensor))
