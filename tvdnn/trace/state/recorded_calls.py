"""Recorded calls: computations of a traced forward on parameters and buffers alone.

Such a call runs on meta copies during the trace, and no step runs it again. Where an op reads the
result, the calls become a formula, and the network gets a computed parameter.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from ..source_lines import FOREIGN, source_location
from .constants import are_held, same_bits
from .drawn_maps import DrawnMaps, NoDrawnMapError, Replay
from .drawn_masks import Mask, mask_of
from .formula_builder import META, FormulaBuilder, NoFormulaError
from .formulas import Formula, reached
from .functionalize import storage_of, version_of
from .meta_copies import MetaCopies
from .recorded_call import RecordedCall
from .tape import OperatorWatch, StateTape

CASTS = ("to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type")


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

        A tensor that a module holds as a plain attribute is one, too. Raises NoFormulaError for a
        tensor of parameters or buffers that no step could compute again.
        """
        if not self.made(tensor) and id(tensor) not in self._copies.attribute_tensors:
            return None
        key = id(tensor), self._writes[storage_of(tensor)], *_state(tensor)
        if key not in self._names:
            formulas = FormulaBuilder(self._copies, self._calls, self._device)
            made = formulas.of(tensor)
            formula = self._evaluated(lambda: _proven(made, tensor, self._copies.tensors))
            self._names[key] = name = self._free_name(formula)
            self.formulas[name] = formula
            self.values[name] = self._evaluated(lambda: _on_meta(tensor, formula))
            if not formula.names:
                attributes = self._copies.attribute_tensors
                self.constants += (each for each in formulas.made if id(each) not in attributes)
                self.constant_read_at = formula.at
        self._check_constant(self.formulas[self._names[key]], tensor)
        return self._names[key]

    def moves(self, attribute: Tensor, now: Tensor) -> bool:
        """Whether calls only move or cast an attribute tensor to what it is now.

        Where a cast rounds it, nothing else may read it: a later forward would read the result.
        """
        calls, known, rounds = self._calls_behind(now), {id(attribute)}, False
        for call in calls:
            read = (each for each in call.given if isinstance(each, Tensor))
            casts = call.name in CASTS and not call.written
            if not casts or any(id(each) not in known for each in read):
                return False
            known.update(map(id, call.made))
            types = (torch.promote_types(attribute.dtype, x.dtype) == x.dtype for x in call.made)
            rounds |= not all(types)
        return id(now) in known and not (rounds and self._is_read_beside(attribute, calls))

    def _is_read_beside(self, attribute: Tensor, calls: Sequence[RecordedCall]) -> bool:
        """Whether anything beside these calls reads an attribute tensor."""
        own = self._copies.attribute_tensors[id(attribute)]
        read = (call for call in self._calls if any(each is attribute for each in call.given))
        others = any(all(call is not each for each in calls) for call in read)
        formulas = self.formulas.values()
        return others or any(not f.calls and own in f.attributes.values() for f in formulas)

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
        """What the formula of this name makes; None where it reads tensors of the module."""
        formula = self.formulas[name]
        if formula.names or formula.attributes:
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
        formulas = FormulaBuilder(self._copies, self._calls, self._device)
        return [*formulas.needed(tensor)][::-1] if self.made(tensor) else []

    def _free_name(self, formula: Formula) -> str:
        """A new name for a formula, by the largest tensor that it reads."""
        copies = self._copies.tensors
        other = next((each.name for each in formula.attributes.values()), "constant")
        largest = max(formula.names, key=lambda name: copies[name].numel(), default=other)
        first = name = f"{largest} computed" if formula.calls else largest
        count = 1
        while name in self.formulas or name in copies:
            count += 1
            name = f"{first} {count}"
        return name


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
    return replace(formula, reaches=found)


def _on_meta(tensor: Tensor, formula: Formula) -> Tensor:
    """A tensor of parameters itself; of a constant another one without values."""
    if formula.names:
        return tensor
    return tensor.detach().to(META).requires_grad_(tensor.requires_grad)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad


def _state(tensor: Tensor) -> tuple[Any, ...]:
    return version_of(tensor), tensor.requires_grad, storage_of(tensor)
