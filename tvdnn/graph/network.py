"""Traced network: ops over named values with static shapes, without torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter
from typing import Any

from .state import NO_CHANGES, StateChanges


@dataclass(frozen=True, slots=True)
class Value:
    """An op's input or output."""

    name: str
    shape: tuple[int, ...]  # batch first, channels last: a map is [N, H, W, C]
    axes: tuple[int, ...] = ()  # by torch dimension, its axis of `shape`; (): `channels_last_axes`

    @property
    def torch_axes(self) -> tuple[int, ...]:
        """By torch dimension, its axis of `shape`."""
        return self.axes or channels_last_axes(len(self.shape))


def channels_last_axes(dims: int) -> tuple[int, ...]:
    """By torch dimension (batch and channels first), its axis: (0, 3, 1, 2) for a map."""
    return (0, dims - 1, *range(1, dims - 1)) if dims > 1 else tuple(range(dims))


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter or buffer of the user's module."""

    name: str  # in the state_dict
    shape: tuple[int, ...]  # torch's
    nbytes: int
    requires_grad: bool = True
    dtype: str = "float32"
    computed_from: tuple[str, ...] | None = None  # parameters; nothing updates a computed one


@dataclass(frozen=True, slots=True)
class Op:
    """A node of the network. The output of a `view` has the bytes of its input."""

    name: str  # the module path, with a suffix where a module runs twice
    kind: str  # the key of its definition in `tvdnn.ops`
    inputs: tuple[str, ...]
    output: str
    params: tuple[str, ...]  # parameters and buffers of the module; "" for an absent optional one
    attrs: Mapping[str, Any]  # static settings

    @property
    def reached(self) -> tuple[str, ...]:
        """The inputs and parameters that the gradient of the output reaches."""
        reached = self.attrs.get("reached")
        if reached is None:
            return (*self.inputs, *self.params)
        return (*compress(self.inputs, reached.maps), *compress(self.params, reached.params))


@dataclass(frozen=True, slots=True)
class Network:
    """A traced module: its ops in execution order, and its values by name."""

    name: str
    values: Mapping[str, Value]
    ops: tuple[Op, ...]
    params: Mapping[str, Param]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    training: bool
    # From the outputs, the module's result: a tensor, or nested tuples, lists and dicts of tensors.
    gather: Callable[[Sequence[Any]], Any] = itemgetter(0)
    detached: frozenset[str] = frozenset()  # values that stop the gradient
    changes: StateChanges = NO_CHANGES  # of the module's state
    formulas: Mapping[str, Any] = field(default_factory=dict)  # by computed parameter
    layout_read: str = ""  # " at file:line" of a result that depends on the inputs' layout
    asked: Mapping[str, str] = field(default_factory=dict)  # by property of the inputs, the line

    @property
    def batch(self) -> int:
        return self.values[self.inputs[0]].shape[0]

    @property
    def completed_last(self) -> frozenset[str]:
        """The parameters whose gradients are complete only after all passes of a step.

        They are the computed parameters, and the parameters that these are computed from.
        """
        computed = [each for each in self.params.values() if each.computed_from is not None]
        return frozenset(
            name for each in computed for name in (each.name, *(each.computed_from or ()))
        )
