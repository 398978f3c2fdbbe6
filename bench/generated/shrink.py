"""shrunk: the smallest network found that fails as a given one does."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from bench.generated.program import INPUTS, Input, Line, Program, used_members, used_values

Fails = Callable[[Program], bool]
NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
LEAST = 2  # numbers are made smaller down to 1 where they are at least this


def shrunk(program: Program, fails: Fails, *, seconds: float) -> Program:
    """A smaller program that fails too: statements, settings and sizes are taken away in turn."""
    end = time.monotonic() + seconds
    steps = (_cuts, _starts, _without_lines, _without_parts, _smaller_numbers)
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for step in steps:
            found = _first_that_fails(step(program), fails, end)
            while found is not None:
                program, progress = found, True
                found = _first_that_fails(step(program), fails, end)
    return program


def _first_that_fails(candidates: Iterator[Program], fails: Fails, end: float) -> Program | None:
    for candidate in candidates:
        if time.monotonic() > end:
            return None
        if fails(candidate):
            return candidate
    return None


def tidied(program: Program) -> Program:
    """The program without members, inputs and setup that nothing uses."""
    known = {member.name for member in program.members}
    setup = tuple(line for line in program.setup if set(re.findall(r"net\.(\w+)", line)) & known)
    program = replace(program, setup=())
    used, read = used_members(program), used_values(program)
    setup = tuple(line for line in setup if re.findall(r"net\.(\w+)", line)[0] in used)
    program = replace(program, setup=setup)
    used = used_members(program)
    return replace(
        program,
        members=tuple(member for member in program.members if member.name in used),
        inputs=tuple(each for each in program.inputs if each.name in read) or program.inputs[:1],
    )


def _cuts(program: Program) -> Iterator[Program]:
    """Shorter networks: each ends at an earlier value and returns it."""
    for number, line in enumerate(program.lines[:-1]):
        if line.targets and not program.settings.get("trainer"):
            kept = program.lines[: number + 1]
            yield tidied(replace(program, lines=kept, outputs=line.targets[:1], form="one"))


def _starts(program: Program) -> Iterator[Program]:
    """A value given as an input, in place of the statement that makes it."""
    shapes = _shapes(program)
    free = [name for name in INPUTS if name not in {each.name for each in program.inputs}]
    for number, line in reversed(list(enumerate(program.lines))):
        if len(line.targets) != 1 or not free:
            continue
        (target,) = line.targets
        rest = (*program.lines[:number], *program.lines[number + 1 :])
        given = Input(free[0], shapes[target], grad="trainer" not in program.settings)
        renamed = _renamed(replace(program, lines=rest), target, given.name)
        least = tidied(replace(renamed, inputs=(*program.inputs, given)))
        if "trainer" not in program.settings or len(least.inputs) == 1:
            yield least


def _without_lines(program: Program) -> Iterator[Program]:
    """One statement less; what it made is read from an earlier value, or not at all."""
    shapes = _shapes(program)
    for number, line in reversed(list(enumerate(program.lines))):
        rest = (*program.lines[:number], *program.lines[number + 1 :])
        if not set(line.targets) & used_values(replace(program, lines=rest)):
            yield tidied(replace(program, lines=rest))
            continue
        if len(line.targets) != 1 or line.targets[0] not in shapes:
            continue
        (target,) = line.targets
        known = [each.name for each in program.inputs]
        known += [name for each in program.lines[:number] for name in each.targets]
        for other in reversed(known):
            if shapes.get(other) == shapes[target]:
                yield tidied(_renamed(replace(program, lines=rest), target, other))


def _renamed(program: Program, old: str, new: str) -> Program:
    def name(each: str) -> str:
        return new if each == old else each

    lines = tuple(replace(line, operands=tuple(map(name, line.operands))) for line in program.lines)
    return replace(program, lines=lines, outputs=tuple(map(name, program.outputs)))


def _without_parts(program: Program) -> Iterator[Program]:
    """One output, setting, option or gradient of an input less."""
    for number in range(len(program.outputs) if len(program.outputs) > 1 else 0):
        kept = (*program.outputs[:number], *program.outputs[number + 1 :])
        form = "one" if len(kept) == 1 else program.form
        yield tidied(replace(program, outputs=kept, form=form))
    if program.form != "one" and len(program.outputs) == 1:
        yield replace(program, form="one")
    for number in range(len(program.setup)):
        rest = (*program.setup[:number], *program.setup[number + 1 :])
        yield tidied(replace(program, setup=rest))
    for name in program.settings:
        if name not in ("policy", "trainer"):
            rest = {key: value for key, value in program.settings.items() if key != name}
            yield replace(program, settings=rest)
    for number, each in enumerate(program.inputs):
        if each.grad:
            inputs = list(program.inputs)
            inputs[number] = replace(each, grad=False)
            yield replace(program, inputs=tuple(inputs))
    for number, member in enumerate(program.members):
        for option in re.findall(r", \w+=(?:\([^()]*\)|'[^']*'|[\w.]+)", member.text):
            shorter = replace(member, text=member.text.replace(option, "", 1))
            kept_members = (*program.members[:number], shorter, *program.members[number + 1 :])
            yield replace(program, members=kept_members)
        if member.text.startswith("tvdnn.nn."):
            plain = replace(member, text=member.text.removeprefix("tvdnn."))
            kept_members = (*program.members[:number], plain, *program.members[number + 1 :])
            yield replace(program, members=kept_members)
    for number, line in enumerate(program.lines):
        if line.no_grad:
            yield _with_line(program, number, replace(line, no_grad=False))
    if not program.training:
        yield replace(program, training=True)


def _with_line(program: Program, number: int, line: Line) -> Program:
    return replace(program, lines=(*program.lines[:number], line, *program.lines[number + 1 :]))


def _smaller_numbers(program: Program) -> Iterator[Program]:
    """A size made smaller wherever the number stands."""
    texts = [*(line.text for line in program.lines), *(each.text for each in program.members)]
    found = {int(number) for text in texts for number in NUMBER.findall(text)}
    found |= {side for each in program.inputs for side in each.shape}
    for number in sorted(found, reverse=True):
        for smaller in sorted({1, 2, number // 2, number - 1}):
            if 1 <= smaller < number and number >= LEAST:
                yield _replaced(program, number, smaller)


def _replaced(program: Program, old: int, new: int) -> Program:
    def text(each: str) -> str:
        return NUMBER.sub(lambda found: str(new) if int(found[0]) == old else found[0], each)

    return replace(
        program,
        inputs=tuple(
            replace(each, shape=tuple(new if side == old else side for side in each.shape))
            for each in program.inputs
        ),
        members=tuple(replace(each, text=text(each.text)) for each in program.members),
        lines=tuple(replace(line, text=_but_operands(line.text, text)) for line in program.lines),
    )


def _but_operands(template: str, text: Callable[[str], str]) -> str:
    parts = re.split(r"(\{\d+\})", template)
    return "".join(part if part.startswith("{") else text(part) for part in parts)


def _shapes(program: Program) -> dict[str, tuple[int, ...]]:
    """The shapes of all values, by torch."""
    names = [name for line in program.lines for name in line.targets]
    if not names:
        return {}
    namespace: dict[str, object] = {}
    everything = replace(program, outputs=tuple(names), form="tuple")
    exec(everything.printed(), namespace)
    inputs = [torch.randn(each.shape) for each in program.inputs]
    with torch.no_grad():
        made = namespace["make"]()(*inputs)  # type: ignore[operator]
    shapes = {name: tuple(value.shape) for name, value in zip(names, made, strict=True)}
    return shapes | {each.name: each.shape for each in program.inputs}
