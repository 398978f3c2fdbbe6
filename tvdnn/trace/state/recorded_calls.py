"""Recorded calls: computations of a traced forward on parameters and buffers alone.

Such a call runs on meta copies during the trace, and no step runs it again. Where an op reads the
result, the calls become a formula, and the network gets a computed parameter.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor, fx

from ..source_lines import FOREIGN, location_text, source_location
from .constants import are_held, same_bits
from .drawn_maps import DrawnMaps, NoDrawnMapError, Replay
from .drawn_masks import Mask, mask_of
from .formulas import Formula, FormulaCall, FormulaRead, FormulaSlot, NetworkDevice, reached
from .functionalize import storage_of, version_of
from .meta_copies import MetaCopies
from .recorded_call import RecordedCall
from .tape import OperatorWatch, StateTape

META = torch.device("meta")
PLAIN = (
    *(Number, str, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)


class NoFormulaError(Exception):
    """Why no step could compute a tensor again."""


class RecordedCalls:
    """The calls of a traced forward that read no map, and the formulas of computed parameters.

    `evaluated` runs a function without recording it. `device` is the network's. `formulas` and
    `values` (meta tensors) are by the names of computed parameters.
    """

    def __init__(
        self,
        meta_copies: MetaCopies,
        evaluated: Callable[[Callable[[], Any]], Any],
        device: torch.device,
    ) -> None:
        self._copies, self._evaluated, self._device = meta_copies, evaluated, device
        self._calls: list[RecordedCall] = []
        self._made: set[int] = set()  # ids of the tensors that calls have made, which are held
        self._writes: Counter[int | None] = Counter()  # by storage, of calls
        self._names: dict[tuple[Any, ...], str] = {}
        self._masks: list[Mask] = []  # that ops have taken
        self._drawn = DrawnMaps()
        self.constants: list[Tensor] = []  # that formulas without parameters, and masks, make
        self.constant_read_at = ""
        self.formulas: dict[str, Formula] = {}
        self.values: dict[str, Tensor] = {}

    def add(self, call: RecordedCall) -> None:
        """Keep a call that made a tensor, or wrote over one."""
        tensors = [each for each in call.made if isinstance(each, Tensor)]
        if tensors or call.written or call.formed:
            self._calls.append(call)
            self._made.update(map(id, tensors))
            self._writes.update(set(map(storage_of, call.written)))

    def made(self, tensor: Tensor) -> bool:
        """Whether a recorded call has made the tensor."""
        return id(tensor) in self._made

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of the computed parameter that a tensor is; None for another tensor.

        Raises NoFormulaError for a tensor of parameters or buffers that no step could compute
        again.
        """
        if not self.made(tensor):
            return None
        key = id(tensor), self._writes[storage_of(tensor)], *_state(tensor)
        if key not in self._names:
            formulas = _Formulas(self._copies, self._calls, self._device)
            made = formulas.of(tensor)
            formula = self._evaluated(lambda: _proven(made, tensor, self._copies.tensors))
            self._names[key] = name = self._free_name(formula)
            self.formulas[name] = formula
            self.values[name] = self._evaluated(lambda: _on_meta(tensor, formula))
            if not formula.names:
                self.constants += formulas.made
                self.constant_read_at = formula.at
        self._check_constant(self.formulas[self._names[key]], tensor)
        return self._names[key]

    def _check_constant(self, formula: Formula, tensor: Tensor) -> None:
        """Check that a constant is what its recorded calls make."""
        if formula.names or tensor.device == META:
            return
        if not self._evaluated(lambda: same_bits(formula({}, tensor.device), tensor)):
            raise NoFormulaError("a constant that something else than torch's calls has written")

    def are_held(self, tape: StateTape) -> bool:
        """Whether anything else holds a constant behind the forward that made it."""
        taped = [each.recorded for each in tape.calls]
        calls = [*self._calls, *taped]
        kept = [tape.made, *(mask.made for mask in self._masks)]
        return bool(self._evaluated(lambda: are_held(self.constants, calls, kept)))

    def computes(self, view: fx.Node) -> bool:
        """Whether a view of a parameter has a formula; its node then names the result."""
        try:
            name = self.name_of(view.meta["value"])
        except NoFormulaError:
            return False
        if name is not None:
            view.target, view.meta["computed"] = name, True
            del view.meta["base"]
        return name is not None

    def is_alike(self, constant: fx.Node) -> bool:
        """Whether a constant is the same for all samples; its node then names that of one."""
        value = self._values_of(str(constant.target))
        if value is None or not self._is_repeated(value):
            return False
        formula = self.formulas[str(constant.target)]
        name = f"{constant.target} of one sample"
        self.formulas[name] = formula.narrowed()
        self.values[name] = self._evaluated(lambda: _on_meta(value[:1], formula))
        constant.target, constant.meta["value"] = name, self.values[name]
        return True

    def is_alike_in_samples(self, tensor: Tensor) -> bool:
        """Whether a tensor is the same for all samples: a constant, or what parameters make."""
        if len(tensor) == 1 or tensor.stride(0) == 0 or self._repeats_one(tensor):
            return True
        value = self._constant_of(tensor)
        return value is not None and self._is_repeated(value)

    def _repeats_one(self, tensor: Tensor) -> bool:
        """Whether a tensor without values is that of one sample, repeated, and not written since.

        One with values is compared with what its calls make.
        """
        if tensor.device != META or version_of(tensor):
            return False
        last = next(reversed(self._calls_behind(tensor)), None)
        if last is None or last.name != "repeat" or all(each is not tensor for each in last.made):
            return False
        source = last.given[0]
        return isinstance(source, Tensor) and source.dim() == tensor.dim() and len(source) == 1

    def _is_repeated(self, value: Tensor) -> bool:
        return bool(self._evaluated(lambda: same_bits(value, value[:1].expand_as(value))))

    def is_zero(self, tensor: Tensor) -> bool:
        """Whether a tensor is a constant of zeros."""
        value = self._constant_of(tensor)
        return value is not None and self._evaluated(lambda: not value.any())

    def _constant_of(self, tensor: Tensor) -> Tensor | None:
        """The values of a constant; None for another tensor."""
        try:
            name = self.name_of(tensor)
        except NoFormulaError:
            return None
        return None if name is None else self._values_of(name)

    def _values_of(self, name: str) -> Tensor | None:
        """What the formula of this name makes; None where it reads parameters or buffers."""
        formula = self.formulas[name]
        if formula.names:
            return None
        value: Tensor = self._evaluated(lambda: formula({}, torch.device("cpu")))
        return value

    def takes(self, mask: Mask) -> bool:
        """Whether an op is the first to read a mask's draw. Nothing else may hold the mask."""
        if any(each.draw is mask.draw for each in self._masks) or self._drawn.draws(mask.draw):
            return False
        self._masks.append(mask)
        self.constants += mask.made
        self.constant_read_at = source_location()
        return True

    def drawn(self, tensor: Tensor, beside: fx.Proxy) -> fx.Node | None:
        """The node of random numbers for each sample; None of a tensor that holds no such numbers.

        `beside` is a map of the batch. Nothing else may hold the tensor. Raises NoDrawnMapError
        where ops cannot make them.
        """
        calls = self._calls_behind(tensor)
        if not any(each.draws for each in calls):
            return None
        if {id(each.draw) for each in self._masks} & {*map(id, calls)}:
            raise NoDrawnMapError("a product by a mask of them draws others")
        replay = Replay(self._drawn, beside, self._calls)
        for call in calls:
            replay.run(call)
        self.constants += replay.tensors
        self.constant_read_at = source_location()
        return replay.read(tensor)

    def are_views_stale(self) -> bool:
        """Whether random numbers were written behind an op that made a view of them."""
        return self._drawn.are_views_stale(self._writes)

    def mask_of(self, tensor: Tensor) -> Mask | None:
        """The mask of samples that a forward has drawn; None for another tensor."""
        return mask_of(self._calls_behind(tensor))

    def _calls_behind(self, tensor: Tensor) -> list[RecordedCall]:
        """The calls on which a tensor depends, the first first; none where no call has made it."""
        formulas = _Formulas(self._copies, self._calls, self._device)
        return [*formulas.needed(tensor)][::-1] if self.made(tensor) else []

    def _free_name(self, formula: Formula) -> str:
        """A new name for a formula, by the largest tensor that it reads."""
        copies = self._copies.tensors
        largest = max(formula.names, key=lambda name: copies[name].numel(), default="constant")
        name = f"{largest} computed"
        count = 1
        while name in self.formulas or name in copies:
            count += 1
            name = f"{largest} computed {count}"
        return name


class _Formulas:
    """Makes the formula of a tensor from the calls on which the tensor depends."""

    def __init__(
        self, meta_copies: MetaCopies, calls: Sequence[RecordedCall], device: torch.device
    ) -> None:
        self._names, self._calls, self._device = meta_copies.names, calls, device
        self._module_storages = {storage_of(each) for each in meta_copies.tensors.values()}
        self.made: list[Tensor] = []  # on the way to the tensor of a formula
        self._slots: dict[int, FormulaSlot] = {}
        self._reads: dict[int, FormulaRead] = {}

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
        return Formula(tuple(self._reads.values()), calls, self._slot(tensor), at=source_location())

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
        return isinstance(each, Tensor) and id(each) not in known and id(each) not in self._names

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
        return slot


def _is_plain(each: Any) -> bool:
    if isinstance(each, slice):
        return all(map(_is_plain, (each.start, each.stop, each.step)))
    return isinstance(each, (*PLAIN, Tensor))


def _proven(formula: Formula, tensor: Tensor, copies: Mapping[str, Tensor]) -> Formula:
    """The formula with the parameters that its gradient reaches, after a trial run.

    Raises NoFormulaError where the formula draws random numbers, changes a tensor that it reads, or
    makes a tensor of another shape or type.
    """
    leaves = {name: copies[name] for name in formula.names}
    watch = OperatorWatch()
    try:
        with torch.set_grad_enabled(True), watch:
            again = formula(leaves, META)
            found = reached(again, leaves)
    except FOREIGN as error:
        raise NoFormulaError(f"a tensor that cannot be computed again ({error})") from error
    effect = watch.effect_on(leaves.values())
    if effect is None and _form(again) != _form(tensor):
        effect = "gives another tensor when it runs again"
    if effect is not None:
        what = f"a tensor computed of {formula.names[0]}" if formula.names else "a constant"
        raise NoFormulaError(f"{what}, whose computation {effect}")
    return Formula(formula.reads, formula.calls, formula.result, found, formula.at)


def _on_meta(tensor: Tensor, formula: Formula) -> Tensor:
    """A tensor of parameters itself; of a constant another one without values."""
    if formula.names:
        return tensor
    return tensor.detach().to(META).requires_grad_(tensor.requires_grad)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad


def _state(tensor: Tensor) -> tuple[Any, ...]:
    return version_of(tensor), tensor.requires_grad, storage_of(tensor)
