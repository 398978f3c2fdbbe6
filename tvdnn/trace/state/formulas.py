"""Formulas: torch's calls that compute a tensor of no map.

They read parameters, buffers, constants, and tensors that modules hold as plain attributes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .attribute_tensors import AttributeTensor
from .meta_answers import answer


@dataclass(frozen=True, slots=True)
class FormulaSlot:
    """The number of a tensor in a formula."""

    number: int


@dataclass(frozen=True, slots=True)
class NetworkDevice:
    """Stands for the device of the network in the arguments of a call."""


@dataclass(frozen=True, slots=True)
class FormulaRead:
    """A parameter or buffer that a formula reads, in the type of its meta copy."""

    slot: int
    name: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class FormulaCall:
    """A call of a formula. Slots stand for the tensors among its arguments and results."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[FormulaSlot | None, ...]
    graded: bool  # whether torch records gradients


@dataclass(frozen=True, slots=True)
class Formula:
    """The calls of torch by which a forward computes one tensor of parameters and buffers."""

    reads: tuple[FormulaRead, ...]
    attributes: Mapping[int, AttributeTensor]  # by the number of a slot
    calls: tuple[FormulaCall, ...]
    result: FormulaSlot
    reaches: tuple[str, ...] = ()  # names of the parameters that the gradient reaches
    at: str = ""  # the line that reads the result first, as " at file:line"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters and buffers that the formula reads."""
        return tuple(read.name for read in self.reads)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return tuple(call.function for call in self.calls)

    def narrowed(self) -> "Formula":
        """The formula of the result's first element along its first dimension."""
        slot = FormulaSlot(-1)
        call = FormulaCall(torch.narrow, (self.result, 0, 0, 1), {}, (slot,), graded=True)
        return replace(self, calls=(*self.calls, call), result=slot)

    def __call__(self, tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """The result of the calls on the tensors of these names, without autocast."""
        known = {read.slot: tensors[read.name].to(read.dtype) for read in self.reads}
        known |= {slot: each.now() for slot, each in self.attributes.items()}
        graded = torch.is_grad_enabled()

        def filled(each: Any) -> Any:
            if isinstance(each, FormulaSlot):
                return known[each.number]
            return device if isinstance(each, NetworkDevice) else each

        with without_autocast(device):
            for call in self.calls:
                with torch.set_grad_enabled(graded and call.graded):
                    args, kwargs = tree_map(filled, call.args), _mapped(filled, call)
                    made = _made(call.function, args, kwargs, device)
                for slot, each in zip(call.results, tree_leaves(made), strict=True):
                    if slot is not None:
                        known[slot.number] = each
        return known[self.result.number]


def _made(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
) -> Any:
    """The result of a call. On the meta device it may read constants of another device."""
    known = device.type != "meta"
    return function(*args, **kwargs) if known else answer(function, args, kwargs, device)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A region whose calls compute in the types of the tensors that they read."""
    known = device.type != "meta"  # which has no autocast
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def _mapped(filled: Callable[[Any], Any], call: FormulaCall) -> dict[str, Any]:
    return {name: tree_map(filled, each) for name, each in call.kwargs.items()}


def gradients(
    formula: Formula, tensors: Mapping[str, Tensor], device: torch.device, gradient: Tensor
) -> dict[str, Tensor]:
    """Gradients of the parameters that a formula reads, of its result's; computed anew."""
    leaves = {name: tensors[name].detach() for name in formula.names}
    wanted = [leaves[name].requires_grad_() for name in formula.reaches]
    with torch.enable_grad():
        result = formula(leaves, device)
        found = torch.autograd.grad(result, wanted, gradient.to(result.dtype))
    return dict(zip(formula.reaches, found, strict=True))


def reached(result: Tensor, leaves: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The names of the leaves that the gradient of a result reaches."""
    trained = {name: each for name, each in leaves.items() if each.requires_grad}
    if result.grad_fn is None or not trained:  # a view taken without gradients requires one
        return ()
    gradient = torch.ones_like(result)
    found: Sequence[Tensor | None] = torch.autograd.grad(
        result, list(trained.values()), gradient, allow_unused=True
    )
    pairs: Iterable[tuple[str, Tensor | None]] = zip(trained, found, strict=True)
    return tuple(name for name, each in pairs if each is not None)
