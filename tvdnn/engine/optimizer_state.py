"""The tensors of optimizer state that planned steps update, beside torch's own optimizer."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import InputError
from ..optim import SGD, AdamW
from ..placement import aligned
from ..placement.cuda_blocks import block_nbytes
from .state_shards import StateShards

Spec: TypeAlias = SGD | AdamW


class OptimizerState:
    """The optimizer state of each parameter, and how often each parameter was updated.

    `steps` is float32, as torch's counts are, and its elements are AdamW's "step" tensors.
    """

    shards: StateShards | None = None  # where each process of a group has a part of it

    def __init__(self, spec: Spec, params: Sequence[Tensor]) -> None:
        self.spec = spec
        self.steps = torch.zeros(len(params))
        self.shown: set[tuple[str, ...]] = set()  # names of parameters whose state is in `state`
        self._entries: dict[Tensor, dict[str, Tensor]] = {}  # what `state` was given of each
        self.numbers = {param: number for number, param in enumerate(params)}
        states = _zeros([self._meta_of(param) for param in params for _ in spec.states], params)
        self.states = {param: {name: next(states) for name in spec.states} for param in params}

    def tensors_of(self, param: Tensor) -> tuple[Tensor | None, ...]:
        """The state tensors that a kernel updates beside `param`; None for no momentum."""
        return tuple(self.states[param].values()) or (None,)

    def follow(
        self,
        optimizer: torch.optim.Optimizer,
        trained: Mapping[str, Tensor],
        known: Container[Tensor],
    ) -> None:
        """Let the optimizer have parameters that were frozen when it was made.

        `known` are the parameters that the network had then. Raises InputError for others.
        """
        missing = {name: param for name, param in trained.items() if param not in self.numbers}
        for name, param in missing.items():
            if param not in known:
                raise InputError(
                    f"parameter {name} was added or replaced after this trainer was made, and its"
                    " optimizer holds the old ones; make a new trainer"
                )
        if missing:
            self.adopt(optimizer, tuple(missing.values()))

    def adopt(self, optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> None:
        """Add parameters to the optimizer, and make their state."""
        other = self._of(params)
        self.numbers |= {param: len(self.steps) + n for param, n in other.numbers.items()}
        self.states |= other.states
        self.steps = torch.cat((self.steps, other.steps))
        optimizer.param_groups[0]["params"].extend(params)
        self.show(optimizer, tuple(optimizer.state))  # counts are elements of the new tensor

    def idle_nbytes(self, trained: Iterable[Tensor]) -> int:
        """Bytes of the state of all parameters beside those `trained` by a step."""
        return block_nbytes(self._nbytes(self.states)) - block_nbytes(self._nbytes(trained))

    def _nbytes(self, params: Iterable[Tensor]) -> int:
        states = (tensor for param in params for tensor in self.states[param].values())
        return sum(aligned(tensor.numel() * tensor.element_size()) for tensor in states)

    def show(self, optimizer: torch.optim.Optimizer, params: Iterable[Tensor]) -> None:
        """Put the state of these parameters into the optimizer's `state`."""
        for param in params:
            entry = self._entry_of(param)
            optimizer.state[param].update(entry)
            self._entries[param] = entry

    def follow_writes(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over what the caller has put into the optimizer's `state`, or taken out of it."""
        state = optimizer.state
        same = all(has_entry(state.get(param), entry) for param, entry in self._entries.items())
        beside = (param for param, entry in state.items() if entry and param in self.numbers)
        if not same or any(param not in self._entries for param in beside):
            self.take_over(optimizer)

    def take_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy the state that the optimizer has into the tensors that steps update."""
        self.shown.clear()
        self._entries.clear()
        for param in self.numbers:
            self._take(optimizer, param, optimizer.state.pop(param, {}))

    @contextmanager
    def gathered(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """A context in which the optimizer's `state` is whole, as a state_dict has it."""
        yield

    def loaded_by_torch(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """What torch loads of a state_dict, ahead of `load`."""
        return state_dict

    def load(self, optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of a state_dict, behind torch's own loading."""
        self.take_over(optimizer)

    def check_layout(self, names: Sequence[str], params: Sequence[Tensor]) -> None:
        """Raise InputError where parameters lie in another order than their state can follow."""

    def _take(
        self, optimizer: torch.optim.Optimizer, param: Tensor, found: Mapping[str, Any]
    ) -> None:
        """Copy a parameter's state into the tensors that steps update. What it lacks is zero."""
        for name, tensor in self.states[param].items():
            given = found.get(name)
            tensor.zero_() if given is None else self._copy(tensor, param, given)
        self.steps[self.numbers[param]] = count_in(found)
        if found:
            self.show(optimizer, (param,))

    def _copy(self, tensor: Tensor, param: Tensor, given: Tensor) -> None:
        tensor.copy_(given)

    def _of(self, params: Sequence[Tensor]) -> "OptimizerState":
        """The state of other parameters, likewise."""
        return OptimizerState(self.spec, params)

    def _meta_of(self, param: Tensor) -> Tensor:
        """A tensor without memory, laid out as each state of a parameter."""
        return torch.empty_like(param, device="meta")

    def _entry_of(self, param: Tensor) -> dict[str, Tensor]:
        """What the optimizer's `state` has of a parameter."""
        return {**self.states[param], **self._count_of(param)}

    def _count_of(self, param: Tensor) -> dict[str, Tensor]:
        adamw = isinstance(self.spec, AdamW)
        return {"step": self.steps[self.numbers[param]]} if adamw else {}


def count_in(entry: Mapping[str, Any]) -> float:
    """The number of updates behind a parameter's state. SGD's is 1 where there is momentum."""
    return float(entry.get("step", float(entry.get("momentum_buffer") is not None)))


def has_entry(found: Mapping[str, object] | None, entry: Mapping[str, Tensor]) -> bool:
    """Whether a parameter's state has these very tensors."""
    return found is not None and all(found.get(name) is each for name, each in entry.items())


def _zeros(wanted: Sequence[Tensor], params: Sequence[Tensor]) -> Iterator[Tensor]:
    """Zeros in the layouts of tensors without memory, all of them in one allocation."""
    if not wanted:
        return
    spans = [aligned(each.numel() * each.element_size()) for each in wanted]
    block = torch.zeros(sum(spans), dtype=torch.uint8, device=params[0].device)
    for each, span in zip(wanted, block.split(spans), strict=True):
        yield span.view(each.dtype).as_strided(each.shape, each.stride())
