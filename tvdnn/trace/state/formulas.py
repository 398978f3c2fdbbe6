"""Formulas: how torch computes a tensor of parameters and buffers alone, as calls to run again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .meta_answers import answer


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a formula holds one of its tensors."""

    number: int


@dataclass(frozen=True, slots=True)
class Device:
    """The device of the network, in the place of the one that a trace ran on."""


@dataclass(frozen=True, slots=True)
class Read:
    """A parameter or buffer of the network that a formula reads, in the type that it had traced."""

    slot: int
    name: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Applied:
    """A call of a formula. Slots stand for tensors in its arguments and, in order, its results.

    `graded` tells whether torch records gradients of it.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Slot | None, ...]
    graded: bool


@dataclass(frozen=True, slots=True)
class Formula:
    """Calls of torch that make one tensor of what is read; the same ones as a forward makes.

    `reaches` are the names of the parameters that its gradient reaches, `at` the line that reads
    its result first, as " at file:line".
    """

    reads: tuple[Read, ...]
    calls: tuple[Applied, ...]
    result: Slot
    reaches: tuple[str, ...] = ()
    at: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters and buffers that are read."""
        return tuple(read.name for read in self.reads)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return tuple(call.function for call in self.calls)

    def __call__(self, tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """What the calls make of the tensors of these names, without autocast."""
        held = {read.slot: tensors[read.name].to(read.dtype) for read in self.reads}
        graded = torch.is_grad_enabled()

        def filled(each: Any) -> Any:
            if isinstance(each, Slot):
                return held[each.number]
            return device if isinstance(each, Device) else each

        with without_autocast(device):
            for call in self.calls:
                with torch.set_grad_enabled(graded and call.graded):
                    args, kwargs = tree_map(filled, call.args), _mapped(filled, call)
                    made = _made(call.function, args, kwargs, device)
                for slot, each in zip(call.results, tree_leaves(made), strict=True):
                    if slot is not None:
                        held[slot.number] = each
        return held[self.result.number]


def _made(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
) -> Any:
    """What a call makes; on the meta device it may read constants that lie elsewhere."""
    known = device.type != "meta"
    return function(*args, **kwargs) if known else answer(function, args, kwargs, device)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A region whose calls compute in the types of what they read."""
    known = device.type != "meta"  # which has no autocast
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def _mapped(filled: Callable[[Any], Any], call: Applied) -> dict[str, Any]:
    return {name: tree_map(filled, each) for name, each in call.kwargs.items()}


def gradients(
    formula: Formula, tensors: Mapping[str, Tensor], device: torch.device, gradient: Tensor
) -> dict[str, Tensor]:
    """The gradients of the parameters that a formula reads, by its result's; computed anew."""
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
