"""Fingerprints: 64-bit numbers for each channel of a traced network's values and gradients.

- A value's channel has the fingerprint of the op that computes it. Views rename it, concatenations
  join it, slices of channels take a part of it.
- A gradient's fingerprint is the sum of its terms modulo 2**64, one term for each op that reads the
  value. An op that passes its gradient through (a sum, a view) contributes the terms of its output.
  A term that is missing, double, or of another value changes the sum.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph, Op

Prints: TypeAlias = NDArray[np.uint64]

# By kind of op, the inputs whose gradient is that of the output; None stands for all. An op whose
# backward has no pass for the gradient needs an entry. ReLU has one because the op that reads its
# output may have masked the gradient already.
PASSES_GRADIENT: Final[Mapping[str, tuple[int, ...] | None]] = {
    "view": None,
    "relu": None,
    "add": None,
    "concat": None,
    "narrow": None,
    "channel_add": None,
    "gate_add": (0,),
    "add_multiple": (0,),
    "straight_through": (0,),
}
# Kinds of ops that copy channels of their inputs, or are ranges of one buffer.
CHANNEL_OPS: Final = ("concat", "narrow")
# Most ops of a network that one fused op stands for.
FUSED_OPS: Final = 5


class Fingerprints:
    """The fingerprints that buffers must hold, derived from the traced network."""

    def __init__(self, graph: Graph) -> None:
        traced, run = graph.traced, graph.network
        self.losses = frozenset(op.name for op in run.ops if op.output not in traced.values)
        added = tuple(op for op in run.ops if op.name in self.losses)
        self.ops = {op.name: op for op in (*traced.ops, *added)}
        values = {**run.values, **traced.values}
        self.widths = {
            name: (*value.shape, 1)[-1 - bool(value.shape)] for name, value in values.items()
        }
        self._detached = traced.detached
        self._shapes = {name: value.shape for name, value in values.items()}
        self.makers = {op.output: op for op in self.ops.values()}
        graded = _values_with_gradient(graph)
        autograd = graph.phase_split < len(graph.passes)
        self.given = graded.intersection(traced.outputs if autograd else ())
        self._readers: dict[str, list[tuple[Op, int]]] = {}
        self._values: dict[str, Prints] = {}
        self._grads: dict[tuple[str, int], Prints] = {}
        for op in self.ops.values():  # in program order, so that no recursion is deep
            self.value(op.output)
            reached = frozenset(op.reached)
            for place, name in enumerate(op.inputs):
                if name in reached:
                    self._readers.setdefault(name, []).append((op, place))
        self._live = set(self.given)  # values with a gradient, though it may be zero
        for op in reversed(self.ops.values()):
            if op.name in self.losses:
                self._live |= graded.intersection(op.inputs[:1])
            elif op.output in self._live and op.output not in traced.detached:
                self._live |= graded.intersection(op.reached)
            self.grad(op.output, self.widths[op.output])

    def value(self, name: str) -> Prints:
        """The fingerprint of each channel of a value."""
        if name not in self._values:
            self._values[name] = self._compute_value(name)
        return self._values[name]

    def _compute_value(self, name: str) -> Prints:
        maker, width = self.makers.get(name), self.widths[name]
        if maker is not None and self.joins_channels(maker):
            parts = [self.value(each) for each in maker.inputs]
            return np.concatenate(parts)[slice(*maker.attrs.get("channels", (None,)))]
        while maker is not None and maker.kind == "view":  # its bytes are those of its input
            (name,) = maker.inputs
            if self.widths[name] == width:
                return self.value(name)
            maker = self.makers.get(name)
        return prints(f"value {name}", width)

    def is_loss(self, name: str) -> bool:
        """True if a value is a loss, which is no map."""
        return name in self.makers and self.makers[name].name in self.losses

    def joins_channels(self, op: Op) -> bool:
        """True if the op's output consists of unchanged channels of its inputs."""
        if op.kind == "concat":
            return sum(self.widths[name] for name in op.inputs) == self.widths[op.output]
        start, stop = op.attrs["channels"] if op.kind == "narrow" else (0, 0)
        return bool(op.kind == "narrow" and stop - start == self.widths[op.output])

    def forms(self, name: str, width: int) -> Iterator[Prints]:
        """The value stored with `width` channels, and each value that it is a view of.

        A view has the bytes of its input. A buffer that a view has renamed may have another number
        of channels than the value.
        """
        maker = self.makers.get(name)
        if self.widths[name] == width:
            yield self.value(name)
        elif maker is None or not (maker.kind == "view" or self.joins_channels(maker)):
            yield prints(f"value {name}", width)
        if maker is not None and maker.kind == "view":
            yield from self.forms(maker.inputs[0], width)

    def grad(self, name: str, width: int) -> Prints:
        """The fingerprint of each channel of a value's gradient stored with `width` channels."""
        if (name, width) not in self._grads:
            given = prints(f"given {name}", width) if name in self.given else zeros(width)
            terms = (self._term(op, place, width) for op, place in self._readers.get(name, ()))
            self._grads[name, width] = sum(terms, start=given)
        return self._grads[name, width]

    def _term(self, op: Op, place: int, width: int) -> Prints:
        """The op's term of the gradient of its input number `place`; zeros if it has none."""
        if op.name in self.losses:
            return zeros(width) if place else self.own_term(op, width)
        if op.output not in self._live or op.output in self._detached:
            return zeros(width)
        output = self.grad(op.output, self.widths[op.output])
        own_width = self.widths[op.inputs[place]] == width
        joins = self.joins_channels(op) and own_width
        if op.kind == "narrow" and own_width:
            start, stop = op.attrs["channels"]
            found = zeros(width)
            found[start:stop] = output if joins else self.own_term(op, stop - start)
            return found
        if not self._passes_gradient(op, place) or (op.kind in CHANNEL_OPS and not joins):
            return self.own_term(op, width)
        if op.kind == "concat":
            start = sum(self.widths[each] for each in op.inputs[:place])
            return output[start : start + width]
        return self.grad(op.output, width)

    def _passes_gradient(self, op: Op, place: int) -> bool:
        """True if the gradient of the op's output is that of its input number `place`."""
        if op.kind == "affine":
            return bool(op.attrs["scale"] == 1)
        if op.kind == "broadcast_add":  # a + scale * b, of which a parameter may be either
            is_first = op.attrs["param"] == 1 if op.params else place == 0
            alike = self._shapes[op.inputs[place]] == self._shapes[op.output]
            return alike and (is_first or bool(op.attrs["scale"] == 1))
        places = PASSES_GRADIENT.get(op.kind, ())
        return places is None or place in places

    def rewidened(self, content: Prints, name: str, width: int) -> Prints:
        """`content`, a sum of terms of the gradient of `name`, stored with `width` channels.

        A view may give a map other channels. Content that is no sum of terms becomes zeros.
        """
        if len(content) == width:
            return content
        readers = self._readers.get(name, ())
        terms = [[self._term(*each, size) for each in readers] for size in (len(content), width)]
        for size in range(1, 1 + len(readers)):
            for chosen in combinations(range(len(readers)), size):
                here, there = ([each[index] for index in chosen] for each in terms)
                if np.array_equal(sum(here[1:], start=here[0]), content):
                    return sum(there[1:], start=there[0])
        return zeros(width)

    def own_term(self, op: Op, width: int) -> Prints:
        """The fingerprint of a gradient that an op computes for an input."""
        return prints(f"term {op.name}", width)

    def covered(self, op: Op) -> tuple[Op, ...]:
        """The traced ops that an op of the graph stands for, from its name to its output."""
        if op.name not in self.ops:
            return (op,)
        first, last = self.ops[op.name], self.makers.get(op.output)
        found = self._fused_path(first, last, FUSED_OPS) if last is not None else None
        return found or (first,)

    def _fused_path(self, first: Op, last: Op, most: int) -> tuple[Op, ...] | None:
        """The ops from `first` to `last`, each a reader of the one before; None above `most`."""
        if first is last:
            return (first,)
        makers = (self.makers.get(name) for name in last.inputs if most > 1)
        paths = (self._fused_path(first, maker, most - 1) for maker in makers if maker is not None)
        return next(((*path, last) for path in paths if path is not None), None)


def _values_with_gradient(graph: Graph) -> frozenset[str]:
    """The values that depend on a trained parameter or on an input whose gradient is an output."""
    traced, found = graph.traced, set(graph.input_grads)
    for op in traced.ops:
        if op.output in traced.detached:
            continue
        reached = op.reached
        params = (traced.params[name] for name in reached if name in traced.params)
        if any(param.requires_grad for param in params) or not found.isdisjoint(reached):
            found.add(op.output)
    return frozenset(found)


def prints(name: str, width: int) -> Prints:
    """A fingerprint for each of `width` channels: a mix of the hash of `name` and the channel."""

    seed = np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))
    mixed: Prints = np.arange(width, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def zeros(width: int) -> Prints:
    return np.zeros(width, np.uint64)
