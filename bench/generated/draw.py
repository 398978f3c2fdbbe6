"""draw: a random network, from a seed or by Hypothesis."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from hypothesis import strategies as st

from bench.generated import banded
from bench.generated.all_kinds import KINDS
from bench.generated.kinds import Kind
from bench.generated.program import INPUTS, Program, used_values
from bench.generated.returned import OBJECTS, REFUSED_FORMS
from bench.generated.run_settings import POLICIES, drawn_settings, drawn_trainer, is_opaque
from bench.generated.source import Drawn, Seeded, Source, chance, choice, weighted
from bench.generated.torch_run import is_differentiable, is_trained
from bench.generated.writer import RejectedError, Writer

SIDES = (6, 8, 5, 4, 7, 3, 10, 13, 12, 2, 1, 9)
FEW_SIDES = (8, 7, 16)
REFUSED = 1  # percent of the networks that hold what tvdnn refuses, drawn on purpose
BANDED = 10  # percent of the others whose samples are cut into bands
TRIES = 4  # draws of one statement before the network goes on without
OF_LAYOUT = "Laid("  # a part that goes by the memory format of the inputs


def drawn_from_seed(
    seed: int, kinds: Iterable[str] = (), *, few: bool = False, refused: int = REFUSED
) -> Program:
    """The network of a seed; of `kinds` where any are named, and of `few` sizes where asked.

    `refused` percent of the networks hold what tvdnn refuses.
    """
    return draw_program(Seeded(seed), kinds, few=few, refused=refused)


@st.composite
def programs(draw: Callable[[st.SearchStrategy[int]], int]) -> Program:
    """Networks as Hypothesis draws and shrinks them."""
    return draw_program(Drawn(draw))


def draw_program(
    source: Source, kinds: Iterable[str] = (), *, few: bool = False, refused: int = REFUSED
) -> Program:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if chance(source, refused):
            return _refused_program(source, [KINDS[name] for name in kinds])
        if not kinds and chance(source, BANDED):
            return banded.program(source)
        ours = choice(source, (0, 0, 30, 100))
        w = Writer(source, training=not chance(source, 15), ours=ours, few=few)
        batch = choice(source, (2, 4) if few else (2, 3, 4, 1, 5))
        trains = chance(source, 20)
        _draw_inputs(w, batch, 1 if trains else weighted(source, (1, 2, 3), (75, 20, 5)))
        allowed = [KINDS[name] for name in kinds] or _supported()
        for _ in range(source.integer(2, 12)):
            _grow(w, allowed)
        if not chance(source, 5):
            _train_something(w)
        if trains and (program := _trainer_program(w, batch)) is not None:
            return program
        return _module_program(w)


def _supported() -> list[Kind]:
    return [kind for kind in KINDS.values() if not kind.planned and not kind.refused]


def _refused_program(source: Source, kinds: list[Kind]) -> Program:
    """A small network with one thing that tvdnn refuses, of these kinds where any are named."""
    w = Writer(source, training=True)
    w.input(choice(source, ((2, 4, 2, 6), (4, 8, 4, 4), (2, 3, 5, 5))), grad=chance(source, 30))
    for _ in range(source.integer(0, 2)):
        _grow(w, _supported())
    w.line("{0} * 1", "x")
    if not kinds and chance(source, 4):
        return w.program([*w.values][-1:], choice(source, (*REFUSED_FORMS,)), policy="auto")
    kinds = kinds or [kind for kind in KINDS.values() if kind.refused]
    before = len(w.lines)
    while len(w.lines) == before:
        _grow(w, kinds)
    last = [line.targets[0] for line in w.lines if line.targets][-1]
    found: dict[str, Any] = {"opaque": True} if is_opaque(w) else {}
    if any(OF_LAYOUT in each.text for each in (*w.members, *w.lines)):
        found["channels_last"] = True
    return w.program([last], "one", policy=choice(source, POLICIES), sections=2, **found)


def _draw_inputs(w: Writer, batch: int, count: int) -> None:
    first = _input_shape(w, batch)
    for number in range(count):
        same = number and chance(w.source, 60)
        w.input(first if same else _input_shape(w, batch), grad=chance(w.source, 30))


def _input_shape(w: Writer, batch: int) -> tuple[int, ...]:
    if chance(w.source, 8):
        return (batch, w.source.integer(1, 20))
    if chance(w.source, 10):
        return (batch, choice(w.source, (3, 4, 1, 8)), choice(w.source, (8, 7, 12, 5, 2)))
    c = choice(w.source, (3, 8) if w.few else (3, 4, 1, 2, 8, 6, 5, 16))
    sides = FEW_SIDES if w.few else SIDES
    height = choice(w.source, sides)
    return batch, c, height, height if chance(w.source, 50) else choice(w.source, sides)


def _grow(w: Writer, kinds: list[Kind]) -> None:
    """Write one more kind behind a value, if one of a few draws fits."""
    for _ in range(TRIES):
        name = w.pick(w.named("map", "row", "last", "line", "groups", "number"))
        fitting = [kind for kind in kinds if w.kind(name) in kind.reads]
        if not fitting:
            continue
        kind = weighted(w.source, fitting, [each.weight for each in fitting])
        mark = w.mark()
        try:
            kind.draw(w, name)
            if kind.changes and not is_differentiable(w):
                raise RejectedError("autograd needs a value that is changed")
            return
        except RejectedError:
            w.back(mark)


def _train_something(w: Writer) -> None:
    """End the network with a layer where its last value depends on no parameter."""
    last = _ends(w)[0]
    layers = {"map": ("conv2d", "conv2d_depthwise", "batch_norm"), "row": ("linear",)}
    if w.kind(last) not in layers or is_trained(w, last):
        return
    mark = w.mark()
    try:
        KINDS[choice(w.source, layers[w.kind(last)])].draw(w, last)
    except RejectedError:
        w.back(mark)


def _module_program(w: Writer) -> Program:
    """A network for a user's loop: any outputs in any form."""
    ends = _ends(w)
    count = 1 if chance(w.source, 45) else min(len(ends), w.source.integer(1, 3))
    outputs = ends[:count]
    if len(outputs) > 1 and chance(w.source, 10):
        outputs.append(outputs[0])
    forms = ("one",) if len(outputs) == 1 and chance(w.source, 80) else ("tuple", "dict")
    forms += ("pair",) if len(outputs) == 2 else ()
    form = "list" if chance(w.source, 3) else choice(w.source, forms)
    form = choice(w.source, (*OBJECTS,)) if chance(w.source, 5) else form
    return w.program(outputs, form, **drawn_settings(w))


def _ends(w: Writer) -> list[str]:
    """Values to return: the last one, then values that nothing reads, seldom the others."""
    names = w.named("map", "row")
    if not names or chance(w.source, 15):
        names = w.named("map", "row", "line", "last", "groups", "number")
    read = used_values(w.program([], "tuple"))
    last = [line.targets[0] for line in reversed(w.lines) if line.targets]
    first = next((name for name in last if name in names), names[0])
    rest = [name for name in names if name != first]
    unread = [name for name in rest if name not in read]
    inner = [name for name in rest if name in read and name not in INPUTS]
    return [first, *unread, *(inner if chance(w.source, 20) else [])]


def _trainer_program(w: Writer, batch: int) -> Program | None:
    """A network for Trainer, of one or two outputs. None where it trains no parameter."""
    first, *rest = _ends(w)
    if w.kind(first) in ("last", "line") or is_opaque(w) or not is_trained(w, first):
        return None
    outputs = [first]
    same = [name for name in rest if w.shape(name) == w.shape(first)]
    if same and chance(w.source, 40):
        outputs.append(same[0])
    settings = drawn_settings(w, trainer=True)
    for name in ("evaluates", "parameters", "channels_last"):
        settings.pop(name, None)
    of_classes = w.kind(first) in ("map", "row")
    settings["trainer"] = drawn_trainer(w, batch, len(outputs), of_classes=of_classes)
    if "accumulate" in settings["trainer"]:
        settings.pop("budget", None)  # the sums of gradients need room that the floor has not
    return w.program(outputs, "one" if len(outputs) == 1 else "tuple", **settings)
