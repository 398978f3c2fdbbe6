"""The traced network: ops over named values, with static shapes and no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from .state import NO_CHANGES, StateChanges


@dataclass(frozen=True, slots=True)
class Value:
    """An op's input or output. `shape` is batch first and channels last: a map is [N, H, W, C].

    `axes` says of each of torch's dimensions which of `shape` it is, by default (0, 3, 1, 2) of a
    map and what that is of others.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()

    @property
    def torch_axes(self) -> tuple[int, ...]:
        """`axes`, in full."""
        return self.axes or channels_last_axes(len(self.shape))


def channels_last_axes(dims: int) -> tuple[int, ...]:
    """By dimension of a value as torch has it, batch and channels first, the axis of its shape."""
    return (0, dims - 1, *range(1, dims - 1)) if dims > 1 else tuple(range(dims))


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter or buffer of the user's module, by its state_dict name. `shape` is torch's.

    A computed one is `made_of` others, which these names are of; nothing updates it.
    """

    name: str
    shape: tuple[int, ...]
    nbytes: int
    requires_grad: bool = True
    dtype: str = "float32"
    made_of: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """A node of the network.

    `name` is the module path (with a suffix where a module runs twice), `kind` the key of its
    definition in `tvdnn.ops`, `params` the names of its parameters and of the module's buffers that
    it uses ("" where an optional one is absent), `attrs` its static settings. A `view` op's output
    is its input's bytes.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    params: tuple[str, ...]
    attrs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Network:
    """What tracing a module yields: ops in execution order; values, inputs and outputs by name.

    `gather` makes of the outputs what the module returns: a tensor, or tuples, named tuples, lists
    and dicts of tensors, with None, numbers and texts among them. `detached` are the values from
    which no gradient goes back to what they are made of. `changes` are those of the module's state
    that depend on no value. `formulas` compute those of `params` that are made of others, which ops
    may read as well. `layout_read` is the line, as " at file:line", whose result hangs on the
    layout of the inputs; it is as of contiguous ones. `asked` are the lines that ask what the
    inputs are, by what they ask.
    """

    name: str
    values: Mapping[str, Value]
    ops: tuple[Op, ...]
    params: Mapping[str, Param]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    training: bool
    gather: Callable[[Sequence[Any]], Any] = itemgetter(0)
    detached: frozenset[str] = frozenset()
    changes: StateChanges = NO_CHANGES
    formulas: Mapping[str, Any] = field(default_factory=dict)
    layout_read: str = ""
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self.values[self.inputs[0]].shape[0]

    @property
    def completed_last(self) -> frozenset[str]:
        """The parameters whose gradients the passes of a step leave incomplete, or hand on.

        They are the computed ones and those that these are made of.
        """
        computed = [each for each in self.params.values() if each.made_of is not None]
        return frozenset(name for each in computed for name in (each.name, *(each.made_of or ())))
