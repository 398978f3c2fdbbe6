"""Optimizer state of which a process has a piece of every parameter's (ZeRO stage 1)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .optimizer_state import OptimizerState, Spec, has_entry
from .state_shards import StateShards


class ShardedState(OptimizerState):
    """`states` has this process's pieces. The optimizer's `state` has counts alone."""

    shards: StateShards

    def __init__(self, spec: Spec, params: Sequence[Tensor], shards: StateShards) -> None:
        self.shards = shards
        super().__init__(spec, params)
        self._strides = {param: param.stride() for param in params}

    def adopt(self, optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> None:
        """Add parameters to the optimizer, and make their state."""
        super().adopt(optimizer, params)
        self._strides |= {param: param.stride() for param in params}

    def follow_writes(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise InputError where the caller has written to the optimizer's `state`.

        What was written is taken out again: a later step goes on with the state as it was.
        """
        state, entries = optimizer.state, self._entries
        kept = all(has_entry(state.get(param), each) for param, each in entries.items())
        if kept and all(each.keys() == entries.get(p, {}).keys() for p, each in state.items()):
            return
        self.show_alone(optimizer, tuple(entries))
        raise InputError(
            'the optimizer\'s state was written to, and with shard="optimizer" each process has a'
            " piece of it: load the whole state by load_state_dict"
        )

    def check_layout(self, names: Sequence[str], params: Sequence[Tensor]) -> None:
        """Raise InputError where the memory format of a parameter has changed."""
        for name, param in zip(names, params, strict=True):
            if param.stride() != self._strides[param]:
                raise InputError(
                    f"the memory format of parameter {name} has changed since the trainer was made,"
                    " which has a piece of its state in the old order; make a new trainer, and load"
                    " the state_dict of before"
                )

    @contextmanager
    def gathered(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """A context in which the optimizer's `state` is whole, in host memory.

        All processes enter it together.
        """
        try:
            for param, entry in self._entries.items():
                pieces = self.states[param].items()
                found = {name: self.shards.gathered(piece, param) for name, piece in pieces}
                counts = {name: count.clone() for name, count in entry.items()}
                optimizer.state[param] = {**counts, **found}
            yield
        finally:
            self.show_alone(optimizer, tuple(self._entries))

    def show_alone(self, optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> None:
        """Let the optimizer's `state` have what it shows of these parameters, and nothing else."""
        optimizer.state.clear()
        self.show(optimizer, params)

    def loaded_by_torch(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state_dict without states, which torch would copy whole to the device."""
        return {**state_dict, "state": {}}

    def load(self, optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
        """Take this process's pieces of a state_dict. Its tensors stay where they are."""
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [param for group in optimizer.param_groups for param in group["params"]]
        saved = {
            param: state_dict["state"].get(number, {})
            for param, number in zip(params, numbers, strict=True)
        }
        self.shown.clear()
        self._entries.clear()
        optimizer.state.clear()
        for param in self.numbers:
            self._take(optimizer, param, saved.get(param, {}))

    def _copy(self, tensor: Tensor, param: Tensor, given: Tensor) -> None:
        self.shards.take(tensor, param, given)

    def _of(self, params: Sequence[Tensor]) -> OptimizerState:
        return ShardedState(self.spec, params, self.shards)

    def _meta_of(self, param: Tensor) -> Tensor:
        return torch.empty(self.shards.numel(param), dtype=param.dtype, device="meta")

    def _entry_of(self, param: Tensor) -> dict[str, Tensor]:
        return self._count_of(param)
