"""From translated calls to the ops of a Network and the values that they read and make."""

import itertools
from collections.abc import Collection
from dataclasses import replace

from torch import fx

from ..graph.network import Op, Value, channels_last_axes
from ..ops.registry import OPERATORS
from ..ops.reshape_translator import in_order
from ..ops.traced_op import Inner, Shape, Source, TracedOp
from .state.changes import HELD


class OpEmitter:
    """Makes ops and values of translated calls; `names` are the values' names by node."""

    def __init__(self, names: dict[fx.Node, str]) -> None:
        self.ops: list[Op] = []
        self.values = {name: _value_of(name, node) for node, name in names.items()}
        self._names: dict[Source, str] = dict(names.items())
        self._num_dropouts = 0

    def emit(self, call: TracedOp, name: str) -> None:
        """Append the op whose output is the value `name`, after the ops that its call contains."""
        inputs = tuple(self._input(source, name) for source in call.inputs)
        attrs = dict(call.attrs)
        if OPERATORS[call.kind].draws:
            attrs["op_id"] = self._num_dropouts
            self._num_dropouts += 1
        given = (*call.params, *call.state)
        params = tuple("" if param is None else _name_of_read_tensor(param) for param in given)
        self.ops.append(Op(name, call.kind, inputs, name, params, attrs))

    def _input(self, source: Source, reader: str) -> str:
        """The name of a value that a call reads; an inner call is emitted first."""
        if source not in self._names:
            assert isinstance(source, Inner)
            name = self._names[source] = self._free_name(f"{reader} {source.call.kind}")
            self.emit(source.call, name)
            self.values[name] = _value(name, source.shape, source.axes)
        return self._names[source]

    def _free_name(self, wanted: str) -> str:
        numbers = itertools.count(2)
        name = wanted
        while name in self.values:
            name = f"{wanted}#{next(numbers)}"
        return name

    def ordered(self, node: fx.Node) -> str:
        """The name of an output with its channels stored last, a copy if need be."""
        source = in_order(node, channels_last_axes(len(node.meta["axes"])))
        return self._input(source, self._names[node])

    def handed_out(self, name: str) -> str:
        """The name of an output; an input, or a view of an input, is copied."""
        makers, copy = {op.output: op for op in self.ops}, f"{name} returned"
        source = name
        while source in makers and makers[source].kind == "view":
            (source,) = makers[source].inputs
        if source in makers or copy in makers:
            return copy if copy in makers else name
        self.ops.append(Op(copy, "affine", (name,), copy, (), {"scale": 1.0, "shift": 0.0}))
        self.values[copy] = replace(self.values[name], name=copy)
        return copy

    def drop_unread_moves(self, outputs: Collection[str]) -> None:
        """Drop views, moves and multiples that no op reads: readers took their source instead."""
        read = set(outputs)
        kept: list[Op] = []
        for op in reversed(self.ops):
            if OPERATORS[op.kind].skippable and op.output not in read:
                del self.values[op.output]
                continue
            kept.append(op)
            read.update(op.inputs)
        self.ops = kept[::-1]


def _name_of_read_tensor(param: fx.Node) -> str:
    return str(param.meta.get(HELD, param.target))


def _value_of(name: str, node: fx.Node) -> Value:
    return _value(name, tuple(node.meta["value"].shape), node.meta["axes"])


def _value(name: str, shape: Shape, axes: Shape) -> Value:
    """A value of the shape in which it is stored: maps with their channels last, [N] as [N, 1]."""
    stored = tuple(shape[axes.index(axis)] for axis in range(len(axes)))
    return Value(name, stored if len(stored) > 1 else (*stored, 1), axes)
