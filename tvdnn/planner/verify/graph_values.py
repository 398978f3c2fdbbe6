"""Provenance proof: passes read the values that the traced network's ops name.

Each channel of a buffer holds a fingerprint, a 64-bit number for the value in it. The proof replays
the passes in program order. The fingerprints that each op must find are derived from the traced
network, before any rewrite, container or buffer. No code is shared with the op definitions that
made the passes.

The proof does not cover what a kernel computes from the right values.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np

from ...errors import ScheduleError
from ...graph import Direction, Graph, Kind, Op, Pass, Use
from .fingerprints import CHANNEL_OPS, PASSES_GRADIENT, Fingerprints, Prints, prints, zeros

# The kind of a normalization, which the op that adds its output may compute.
BARE_NORM: Final = "batch_norm"
# Roles of passes that add gradients of one value.
SUMS: Final = ("add_grad", "copy_grad")
# Roles of passes that write the gradient that they read.
TOTALS: Final = ("mask", "round")
# Roles of passes whose gradient maps only their own op reads.
INNER: Final = ("unpool", "grad_bias")
# Kinds of buffers that hold values.
STORED: Final = (Kind.MAP, Kind.INPUT)


def check_provenance(graph: Graph) -> None:
    """Raise ScheduleError where a pass reads other values or gradients than its op names.

    A graph that no network was traced for has no ops and nothing to prove.
    """
    if not graph.ops:
        return
    replay = _Replay(graph)
    forward = sum(pass_.direction is Direction.FORWARD for pass_ in graph.passes)
    for index, pass_ in enumerate(graph.passes):
        if index == forward:
            replay.check_outputs()
        replay.advance(pass_)
    if forward == len(graph.passes):
        replay.check_outputs()
    replay.check_inputs_read()
    replay.check_input_grads()


class _Replay:
    """The fingerprints in the buffers, pass by pass."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._expected = Fingerprints(graph)
        self._contents: dict[str, Prints] = {}
        self._read: dict[str, set[str]] = {}
        self._written_ops: set[str] = set()  # ops that have written their output
        self._computed_later: set[str] = set()  # normalizations that other ops compute
        self._covered = {name: self._expected.covered(op) for name, op in graph.ops.items()}
        for buffer, name in graph.inputs.items():
            width = graph.buffers[buffer].shape[-1]
            source = name.removeprefix("grad ")
            if graph.buffers[buffer].kind is Kind.GRAD:
                self._contents[buffer] = prints(f"given {source}", width)
            elif name in self._expected.widths:
                self._contents[buffer] = self._expected.value(name).copy()

    def advance(self, pass_: Pass) -> None:
        """Check the reads of a pass, and record its writes."""
        if pass_.direction is Direction.UPDATE:
            return
        op = self._graph.ops[pass_.op]
        found = {name for use in pass_.reads for name in self._values_read(pass_, op, use)}
        if pass_.direction is Direction.FORWARD:
            self._read.setdefault(op.name, set()).update(found)
            self._replay_forward(pass_, op)
        else:
            self._replay_backward(pass_, op)

    def check_outputs(self) -> None:
        """Raise unless the output buffers hold the network's outputs."""
        for buffer, name in zip(self._graph.output_maps, self._graph.network.outputs, strict=True):
            if self._graph.buffers[buffer].kind in STORED and not self._holds(Use(buffer), name):
                raise ScheduleError(f"buffer {buffer} does not hold the output {name}")

    def check_inputs_read(self) -> None:
        """Raise unless the forward passes of every op have read all of its inputs."""
        for name, read in self._read.items():
            ops = self._covered[name]
            stored = [
                each for each in _inputs_from_outside(ops) if not self._expected.is_loss(each)
            ]
            missing = [each for each in stored if each not in read]
            elsewhere = name in self._computed_later or ops[-1].kind in CHANNEL_OPS
            if missing and not elsewhere:
                raise ScheduleError(f"no forward pass of {name} reads its input {missing[0]}")

    def check_input_grads(self) -> None:
        """Raise unless the gradients of inputs that are outputs have all of their terms."""
        for name, buffer in self._graph.input_grads.items():
            expected = self._expected.grad(name, self._graph.buffers[buffer].shape[-1])
            if not np.array_equal(self._content(Use(buffer)), expected):
                raise ScheduleError(f"buffer {buffer} does not hold the gradient of {name}")

    def _values_read(self, pass_: Pass, op: Op, use: Use) -> Iterator[str]:
        """The inputs of the op that one of its uses finds."""
        if self._graph.buffers[use.buffer].kind not in STORED or op.kind == "parameter":
            return
        ops, content = self._covered[op.name], self._content(use)
        names = dict.fromkeys(name for each in ops for name in (*each.inputs, each.output))
        if "maker" in pass_.attrs:
            found = self._values_beside_made(pass_, op, use, content)
        else:
            found = [name for name in names if self._holds_form(content, name, pass_)]
            found += [each for each in self._deferred(pass_, names, content) if each not in found]
        if not found:
            raise ScheduleError(
                f"{pass_.name} reads {_described(use)}, which holds none of what {op.name} reads:"
                f" {', '.join(names)}"
            )
        yield from found

    def _holds(self, use: Use, name: str) -> bool:
        content = self._content(use)
        forms = self._expected.forms(name, len(content))
        return any(np.array_equal(content, form) for form in forms)

    def _holds_form(self, content: Prints, name: str, pass_: Pass) -> bool:
        """True if the content is a value; for moments and ranges, some of its channels suffice."""
        kind = self._graph.ops[pass_.op].kind
        forms = self._expected.forms(name, len(content))
        if any(np.array_equal(content, form) for form in forms):
            return True
        part = pass_.role == "moments" or kind == "narrow"
        return part and _is_within(content, self._expected.value(name))

    def _deferred(self, pass_: Pass, names: Iterable[str], content: Prints) -> Iterator[str]:
        """The outputs of normalizations that a pass with their statistics makes of `content`."""
        for name in names:
            maker = self._expected.makers.get(name)
            if maker is None or maker.kind != BARE_NORM or maker.name in self._written_ops:
                continue
            holds = self._holds_form(content, maker.inputs[0], pass_)
            if holds and any(self._is_aux_of(use, maker) for use in pass_.reads):
                self._computed_later.add(maker.name)
                yield name

    def _values_beside_made(self, pass_: Pass, op: Op, use: Use, content: Prints) -> list[str]:
        """What a use finds of a pass that makes the first input: that, another or the output.

        Where what that is made of is another input too, the pass reads it twice.
        """
        made = self._makes_again(pass_, op, use)
        first = next(each for each in pass_.reads if self._kind(each) in STORED)
        others = _inputs_from_outside(self._covered[op.name])[1:]
        again = others if pass_.reads.count(use) > 1 else []
        names = again if made else [*others, op.output] if others and use != first else []
        found = [name for name in names if self._holds_form(content, name, pass_)]
        return [op.inputs[0], *found] if made else found

    def _makes_again(self, pass_: Pass, op: Op, use: Use) -> bool:
        """Whether a use holds what the op's input is made of, by a pass that makes it itself.

        The pass reads the inputs of the input's maker in their order, of a normalization also the
        statistics. Behind a gate the input's first input may be made as well.
        """
        maker = self._maker_of(op.inputs[0])
        names = _inputs_from_outside(self._covered[maker.name])
        maps = [each for each in pass_.reads if self._kind(each) in STORED]
        if pass_.attrs["maker"] == "normalize gate":
            maker = self._maker_of(names[0])
            names = [*_inputs_from_outside(self._covered[maker.name]), *names[1:]]
        statistics = any(self._is_aux_of(each, maker) for each in pass_.reads)
        if pass_.attrs["maker"] != "gate" and not statistics:
            return False
        held = dict(zip(maps, names, strict=False)).get(use)
        if held is None or not self._holds_form(self._content(use), held, pass_):
            return False
        if pass_.direction is Direction.FORWARD:
            self._computed_later.add(maker.name)
        return True

    def _maker_of(self, value: str) -> Op:
        return next(each for each in self._graph.ops.values() if each.output == value)

    def _is_aux_of(self, use: Use, op: Op) -> bool:
        """True if a buffer holds what a pass of `op` wrote there."""
        buffer = self._graph.buffers[use.buffer]
        if buffer.kind is not Kind.AUX or use.buffer not in self._contents:
            return False
        return np.array_equal(self._content(use), self._content_of_aux(op, use))

    def _content_of_aux(self, op: Op, use: Use) -> Prints:
        return prints(f"aux {op.name}", use.width(self._graph.buffers[use.buffer]))

    def _replay_forward(self, pass_: Pass, op: Op) -> None:
        ops = self._covered[op.name]
        copied = [self._content(use) for use in pass_.reads]
        for place, use in enumerate(pass_.writes):
            kind, width = self._graph.buffers[use.buffer].kind, self._width(use)
            if kind is Kind.AUX:
                self._write(use, self._content_of_aux(op, use))
            elif kind is Kind.MAP and op.kind in CHANNEL_OPS:
                self._write(use, self._copy_result(copied[place], op, width))
            elif kind is Kind.MAP:
                self._write(use, next(self._expected.forms(ops[-1].output, width)))
                self._written_ops.add(op.name)

    def _copy_result(self, content: Prints, op: Op, width: int) -> Prints:
        """The fingerprints that a copy writes. A view may have given the source other channels."""
        if not self._expected.joins_channels(op):
            return self._expected.value(op.output)
        if len(content) == width:
            return content
        for name in (*op.inputs, op.output):
            forms = self._expected.forms(name, len(content))
            own = self._expected.widths[name] == width
            if own and any(np.array_equal(content, form) for form in forms):
                return self._expected.value(name)
        return zeros(width)

    def _replay_backward(self, pass_: Pass, op: Op) -> None:
        grads = [use for use in pass_.reads if self._kind(use) is Kind.GRAD and not use.neighbour]
        writes = [use for use in pass_.writes if self._kind(use) in (Kind.GRAD, Kind.AUX)]
        contents = [self._content(use) for use in grads]
        if op.kind in CHANNEL_OPS:
            contents = [
                self._expected.rewidened(content, op.output, use.shape[-1])
                if use.shape
                else content
                for use, content in zip(grads, contents, strict=True)
            ]
        if pass_.role == "zero_grad":
            results = [zeros(self._width(use)) for use in writes]
        elif pass_.role in SUMS:
            output = self._covered[op.name][-1].output
            results = [self._sum_of_terms(contents, output, self._width(use)) for use in writes]
        else:
            others = self._without_own(pass_, op, grads, contents)
            results = [self._result(pass_, op, use, contents, others) for use in writes]
        for use, result in zip(writes, results, strict=True):
            self._write(use, result)

    def _result(
        self, pass_: Pass, op: Op, use: Use, contents: list[Prints], others: list[Prints]
    ) -> Prints:
        """The fingerprints that a pass writes which reads the gradient of its op's output."""
        width = self._width(use)
        if self._kind(use) is Kind.AUX and pass_.role != "round":
            return self._content_of_aux(op, use)
        if pass_.role in INNER:
            return prints(f"inner {op.name}", width)
        ops = self._covered[op.name]
        if op.kind in CHANNEL_OPS and not self._expected.joins_channels(op):
            return self._expected.own_term(op, width)
        matching = [each for each in contents if len(each) == width]
        if op.kind in CHANNEL_OPS:
            own = self._expected.own_term(op, width)
            return sum(matching, start=zeros(width)) if matching else own
        masked = pass_.attrs.get("leaves_masked", False) and use == pass_.writes[-1]
        if masked or pass_.role in TOTALS or (pass_.role == "grad_sums" and BARE_NORM in op.kind):
            return self._sum_of_terms(contents, ops[-1].output, width)
        reader = next(
            (each for each in ops if set(each.inputs) & set(_inputs_from_outside(ops))), ops[0]
        )
        own = self._expected.own_term(reader, width)
        if PASSES_GRADIENT.get(reader.kind, ()) is None and len(ops) == 1:
            own = self._expected.grad(reader.output, width)
        return sum((each for each in others if len(each) == width), start=own)

    def _without_own(
        self, pass_: Pass, op: Op, grads: Sequence[Use], contents: list[Prints]
    ) -> list[Prints]:
        """The gradients that a pass reads besides its op's output gradient.

        Raises ScheduleError where no sum of the gradients is that of the output.
        """
        inner = [prints(f"inner {op.name}", len(content)) for content in contents]
        remaining = [
            content
            for content, own in zip(contents, inner, strict=True)
            if not np.array_equal(content, own)
        ]
        if not remaining or op.kind in CHANNEL_OPS:
            return []
        output = self._covered[op.name][-1].output
        for count in range(len(remaining), 0, -1):
            for chosen in combinations(range(len(remaining)), count):
                parts = self._of_one_width([remaining[index] for index in chosen], output)
                expected = self._expected.grad(output, len(parts[0]))
                known = len(parts) == 1 or all(part.any() for part in parts)
                if known and np.array_equal(sum(parts[1:], start=parts[0]), expected):
                    return [each for index, each in enumerate(remaining) if index not in chosen]
        names = ", ".join(_described(use) for use in grads)
        raise ScheduleError(
            f"{pass_.name} reads {names}, which holds another gradient than that of {output}"
        )

    def _of_one_width(self, parts: list[Prints], value: str) -> list[Prints]:
        """Terms of the gradient of `value`, all with its number of channels.

        A view may have given some of them other channels. A part that is no term becomes zeros.
        """
        if len({len(part) for part in parts}) == 1:
            return parts
        width = self._expected.widths[value]
        return [self._expected.rewidened(part, value, width) for part in parts]

    def _sum_of_terms(self, contents: Iterable[Prints], value: str, width: int) -> Prints:
        terms = (self._expected.rewidened(each, value, width) for each in contents)
        return sum(terms, start=zeros(width))

    def _content(self, use: Use) -> Prints:
        """The fingerprints of a use's channels; zeros where nothing was written."""
        channels = self._contents.get(use.buffer)
        if channels is None:
            channels = zeros(self._graph.buffers[use.buffer].shape[-1])
        return channels if use.channels is None else channels[slice(*use.channels)]

    def _write(self, use: Use, content: Prints) -> None:
        channels = self._content(Use(use.buffer)).copy()
        channels[slice(*(use.channels or (0, len(channels))))] = content
        self._contents[use.buffer] = channels

    def _kind(self, use: Use) -> Kind:
        return self._graph.buffers[use.buffer].kind

    def _width(self, use: Use) -> int:
        return use.width(self._graph.buffers[use.buffer])


def _inputs_from_outside(ops: Sequence[Op]) -> list[str]:
    computed = {op.output for op in ops}
    return [name for op in ops for name in op.inputs if name not in computed]


def _is_within(part: Prints, whole: Prints) -> bool:
    """True if `part` is a contiguous range of `whole`."""

    if len(part) == 0 or len(part) > len(whole):
        return False
    starts = np.flatnonzero(whole == part[0])
    return any(np.array_equal(whole[start : start + len(part)], part) for start in starts)


def _described(use: Use) -> str:
    return use.buffer if use.channels is None else f"{use.buffer} channels {list(use.channels)}"
