"""Writer: builds a network statement by statement, and runs each to know what it yields."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

import tvdnn
from bench.generated.parts import SCOPE
from bench.generated.program import INPUTS, Input, Line, Member, Program
from bench.generated.source import Source, chance, choice

LARGEST = 1e4  # of a value: beyond it rounding says little about what is wrong
RECENT = 3  # values of which a statement reads one more often than any other
TORCH_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


class RejectedError(Exception):
    """A statement that torch refuses, or whose result is of no use."""


class Writer:
    """A network that grows by statements. `values` holds each name's value, by torch in float32.

    `ours` percent of the layers come from tvdnn.nn where it has them. `few` asks for maps of few
    sizes, for which fewer kernels are compiled.
    """

    def __init__(self, source: Source, *, training: bool, ours: int = 0, few: bool = False) -> None:
        self.source = source
        self.training = training
        self.ours = ours
        self.few = few
        self.inputs: list[Input] = []
        self.members: list[Member] = []
        self.lines: list[Line] = []
        self.setup: list[str] = []
        self.values: dict[str, Tensor] = {}
        self.permuted: set[str] = set()  # maps as [N, H, W, C]
        self.dead: set[str] = set()  # values that nothing is to read
        self.no_grad = False
        self._net = nn.Module()

    # What is there.

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def kind(self, name: str) -> str:
        """map [N, C, H, W], row [N, F], last [N, H, W, C], line [N, C, L], groups or number [N]."""
        if name in self.permuted:
            return "last"
        return {1: "number", 2: "row", 3: "line", 4: "map", 5: "groups"}.get(
            self.values[name].dim(), "other"
        )

    def named(self, *kinds: str) -> list[str]:
        """The values of these kinds, the latest first."""
        found = (name for name in reversed(self.values) if self.kind(name) in kinds)
        return [name for name in found if name not in self.dead]

    def alike(self, name: str, *, but: Sequence[str] = ()) -> list[str]:
        """The other values of this one's shape and order, the latest first."""
        found = self.named(self.kind(name))
        same = [other for other in found if self.shape(other) == self.shape(name)]
        return [other for other in same if other not in (name, *but)]

    def pick(self, names: Sequence[str]) -> str:
        """One of `names`, the first ones more often."""
        if not names:
            raise RejectedError("no value fits")
        few = chance(self.source, 60)
        return choice(self.source, names[:RECENT] if few else names)

    def at_most(self, name: str, pixels: int) -> None:
        """Refuse a statement about a map or line of more pixels than these."""
        if prod(self.shape(name)[2:]) > pixels:
            raise RejectedError("large enough")

    # What is added.

    def input(self, shape: tuple[int, ...], *, grad: bool) -> str:
        name = INPUTS[len(self.inputs)]
        self.inputs.append(Input(name, shape, grad))
        self.values[name] = _data(shape, len(self.inputs))
        return name

    def member(self, prefix: str, text: str) -> str:
        """A new attribute, as "self.name". Layers of torch.nn may become ours."""
        name = f"{prefix}{sum(member.name.startswith(prefix) for member in self.members)}"
        kind = text.removeprefix("nn.").partition("(")[0]
        if text.startswith("nn.") and kind in tvdnn.nn.__all__ and chance(self.source, self.ours):
            text = f"tvdnn.{text}"
        self.members.append(Member(name, text))
        setattr(self._net, name, self._evaluated(text, {}))
        self._net.train(self.training)
        for statement in self.setup:  # modes of layers, as in the printed network
            exec(statement, {"net": self._net, **SCOPE})
        return f"self.{name}"

    def line(self, text: str, *operands: str, permuted: bool = False) -> str:
        """A statement that makes a value; its name."""
        return self.parts(text, *operands, count=1, permuted=permuted)[0]

    def layer(self, prefix: str, text: str, operand: str, *, permuted: bool = False) -> str:
        """A new layer and its call on a value; the name of what it makes."""
        return self.line(f"{self.member(prefix, text)}({{0}})", operand, permuted=permuted)

    def parts(self, text: str, *operands: str, count: int, permuted: bool = False) -> list[str]:
        """A statement that makes several values."""
        first = sum(len(line.targets) for line in self.lines)
        names = tuple(f"v{first + index}" for index in range(count))
        line = Line(names, text, operands, self.no_grad)
        made = self._run(line)
        made = (made,) if count == 1 else tuple(made)
        if len(made) != count:
            raise RejectedError(f"{text} makes {len(made)} values")
        self.lines.append(line)
        for name, value in zip(names, made, strict=True):
            self._check(value)
            self.values[name] = value
            if permuted:
                self.permuted.add(name)
        return list(names)

    def change(self, text: str, *operands: str) -> None:
        """A statement that changes its first operand in place."""
        line = Line((), text, operands, self.no_grad)
        self._run(line)
        self.lines.append(line)
        for value in self.values.values():
            self._check(value)

    def configure(self, statement: str) -> None:
        """A statement about `net` once it is made, such as net.conv0.requires_grad_(False)."""
        self.setup.append(statement)
        try:
            exec(statement, {"net": self._net, **SCOPE})
        except (AttributeError, RuntimeError) as error:  # no such bias, or a computed weight
            raise RejectedError(str(error)) from error

    # Back to what was.

    def mark(self) -> tuple[Any, ...]:
        return len(self.members), len(self.lines), len(self.setup), len(self.inputs), self.no_grad

    def back(self, mark: tuple[Any, ...]) -> None:
        """Take back all that came after `mark`."""
        members, lines, setup, inputs, self.no_grad = mark
        for member in self.members[members:]:
            delattr(self._net, member.name)
        del self.members[members:], self.setup[setup:]
        kept, self.lines = self.lines[:lines], []
        self.values = {
            each.name: _data(each.shape, i + 1) for i, each in enumerate(self.inputs[:inputs])
        }
        del self.inputs[inputs:]
        for line in kept:
            made = self._run(line)
            self.lines.append(line)
            parts = (made,) if len(line.targets) == 1 else made
            self.values |= dict(zip(line.targets, parts, strict=True)) if line.targets else {}
        self.permuted &= set(self.values)

    def program(self, outputs: Sequence[str], form: str, **settings: Any) -> Program:
        return Program(
            tuple(self.inputs),
            tuple(self.members),
            tuple(self.lines),
            tuple(outputs),
            form,
            self.training,
            tuple(self.setup),
            settings,
        )

    def _run(self, line: Line) -> Any:
        statement = line.text.format(*line.operands)
        with torch.no_grad():
            if line.targets:
                return self._evaluated(statement, self.values)
            try:
                exec(statement, {**SCOPE} | {"self": self._net}, dict(self.values))
            except TORCH_FAILURES as error:
                raise RejectedError(str(error)) from error
        return None

    def _evaluated(self, text: str, values: dict[str, Tensor]) -> Any:
        try:
            return eval(text, {**SCOPE} | {"self": self._net} | values)
        except TORCH_FAILURES as error:
            raise RejectedError(str(error)) from error

    def _check(self, value: Any) -> None:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2:
            raise RejectedError("no map, row or view of one")
        if value.numel() == 0 or not float(value.abs().max()) < LARGEST:
            raise RejectedError("empty, infinite or too large")


def _data(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
