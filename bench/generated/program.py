"""A generated network as data: constructors, statements and input shapes, printed as a module."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.generated.parts import parts_in
from bench.generated.returned import OBJECTS, REFUSED_FORMS, returned

HEADER = """import torch
import tvdnn
from torch import nn
from torch.nn import functional as F
"""
INDENT = " " * 4
INPUTS = "xyzuw"  # their names


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that forward takes."""

    name: str
    shape: tuple[int, ...]
    grad: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """An attribute of the module: `self.name = text`."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """One statement of forward."""

    targets: tuple[str, ...]  # names of the values that it makes; none where it changes a value
    text: str  # names its operands {0}, {1}, and so on
    operands: tuple[str, ...] = ()
    no_grad: bool = False  # it stands in a torch.no_grad() region

    def printed(self) -> str:
        statement = self.text.format(*self.operands)
        return f"{', '.join(self.targets)} = {statement}" if self.targets else statement


@dataclass(frozen=True, slots=True)
class Program:
    """A network, its inputs, and how it is to be run.

    Forward returns "one" tensor, a "tuple", a "list", a "dict", a "pair" of two with names, or one
    of the forms of returned.py.
    """

    inputs: tuple[Input, ...]
    members: tuple[Member, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    form: str = "one"
    training: bool = True
    setup: tuple[str, ...] = ()  # statements about `net`, run after its mode is set
    settings: Mapping[str, Any] = field(default_factory=dict)  # how tvdnn runs it

    def printed(self) -> str:
        """The source of a Python module that makes the network and names its inputs."""
        body = ["\n\nclass Net(nn.Module):\n", *self._init(), *self._forward()]
        body += ["\n\ndef make():\n", *self._make(), "\n\n", *self._about()]
        parts = (f"\n{part}" for part in parts_in("".join(body)))
        return "".join([HEADER, *parts, *body])

    def _init(self) -> list[str]:
        if not self.members:
            return []
        lines = ["def __init__(self):", f"{INDENT}super().__init__()"]
        lines += [f"{INDENT}self.{each.name} = {each.text}" for each in self.members]
        return [*(f"{INDENT}{line}\n" for line in lines), "\n"]

    def _forward(self) -> list[str]:
        lines = [f"def forward(self, {', '.join(each.name for each in self.inputs)}):"]
        inside = False
        for line in self.lines:
            if line.no_grad and not inside:
                lines.append(f"{INDENT}with torch.no_grad():")
            inside = line.no_grad
            lines.append(INDENT * (1 + inside) + line.printed())
        return [f"{INDENT}{line}\n" for line in [*lines, f"{INDENT}return {self._returned()}"]]

    def _returned(self) -> str:
        if self.form == "dict":
            pairs = (f'"out{i}": {name}' for i, name in enumerate(self.outputs))
            return f"{{{', '.join(pairs)}}}"
        if self.form in OBJECTS or self.form in REFUSED_FORMS:
            return returned(self.form, self.outputs)
        joined = ", ".join(self.outputs)
        forms = {"one": joined, "list": f"[{joined}]", "tuple": f"({joined},)"}
        return {**forms, "pair": f"Pair({joined})"}[self.form]

    def _make(self) -> list[str]:
        lines = [f"net = Net().{'train' if self.training else 'eval'}()", *self.setup, "return net"]
        return [f"{INDENT}{line}\n" for line in lines]

    def _about(self) -> list[str]:
        shapes = (f'"{each.name}": {each.shape}' for each in self.inputs)
        grads = [each.name for each in self.inputs if each.grad]
        return [
            f"INPUTS = {{{', '.join(shapes)}}}\n",
            f"GRADS = {grads}\n",
            f"SETTINGS = {dict(self.settings)}\n",
        ]


def used_members(program: Program) -> set[str]:
    """The names of the members that statements and other members read."""
    found: set[str] = set()
    texts = [*(line.text for line in program.lines), *program.setup]
    known = {member.name: member.text for member in program.members}
    while texts:
        names = set(re.findall(r"\b(?:self|net)\.(\w+)", texts.pop())) & set(known)
        texts += [known[name] for name in names - found]
        found |= names
    return found


def used_values(program: Program) -> set[str]:
    """The names of the values that statements read or that are returned."""
    return {*program.outputs, *(name for line in program.lines for name in line.operands)}
