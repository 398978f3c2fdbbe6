"""Parts of random networks: everything in tvdnn's tables, and calls that it refuses."""

import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from bench import generated
from bench.generated import refused, refused_state
from bench.generated.case import load
from bench.generated.compare import REFUSED, compare
from bench.generated.draw import drawn_from_seed
from bench.generated.kinds import KINDS, Kind
from bench.generated.source import Seeded
from bench.generated.writer import RejectedError, Writer
from tvdnn.errors import UnsupportedOpError
from tvdnn.ops.decompositions import DECOMPOSITIONS
from tvdnn.ops.registry import FUNCTIONS, METHODS
from tvdnn.trace.modules import LAYERS
from tvdnn.trace.trace import trace

TEXT = "".join(path.read_text() for path in Path(generated.__file__).parent.glob("*.py"))
OPERATORS = {
    operator.abs: "abs({0})",
    operator.pow: "{0} **",
    operator.ipow: "{0} **=",
    operator.add: "{0} + {1}",
    operator.iadd: "{0} += {1}",
    operator.sub: "{0} - {1}",
    operator.isub: "{0} -= {1}",
    operator.mul: "{0} * {1}",
    operator.imul: "{0} *= {1}",
    operator.truediv: "{0} /",
    operator.itruediv: "{0} /= 2",
    operator.neg: "-{0}",
    operator.pos: "+{0}",
    operator.getitem: "{0}[:, ",
    getattr: ".values",
}
MODULES = ("torch", torch), ("F", functional), ("torch.linalg", torch.linalg)
BY_LAYERS = ("stochastic_depth", "counted_batch_norm", "_threshold")  # that call them
BY_TRACING = ("straight_through", "random_map")  # which makes calls of them


def names_of(function: Any) -> list[str]:
    """How printed networks may call a function."""
    if function in OPERATORS:
        return [OPERATORS[function]]
    return [
        f"{place}.{name}("
        for place, module in MODULES
        for name in dir(module)
        if getattr(module, name, None) is function
    ]


def test_every_function_of_the_tables_is_drawn() -> None:
    missing = [
        each.__name__
        for each in (*FUNCTIONS, *DECOMPOSITIONS)
        if each.__name__ not in (*BY_LAYERS, *BY_TRACING)
        and not any(name in TEXT for name in names_of(each))
    ]
    assert missing == []


def test_every_method_of_the_tables_is_drawn() -> None:
    assert [name for name in METHODS if not re.search(rf"\.{name}\(", TEXT)] == []


def test_every_layer_is_drawn() -> None:
    text = TEXT.replace("nn.BatchNorm{dims}d", "nn.BatchNorm1d nn.BatchNorm2d")
    assert [each.__name__ for each in LAYERS if not re.search(rf"\b{each.__name__}\b", text)] == []


SHAPES = ((2, 4, 2, 6), (4, 8, 4, 4), (2, 4, 4, 4))
DRAWS: list[tuple[str, Callable[[Writer, str], object]]] = [
    *((text, lambda w, x, text=text: w.line(text, x)) for text in refused.CALLS),
    *((text, lambda w, x, text=text: refused.layer(w, x, text)) for text in refused.LAYERS),
    *((text, lambda w, x, text=text: w.change(text, x)) for text in refused.STATEMENTS),
    *(
        (text, lambda w, x, pair=(own, text): refused.written(w, x, *pair))
        for own, text in refused.OWN
    ),
    *(
        (text, lambda w, x, pair=(own, text): refused.operand(w, x, *pair))
        for own, text in refused.HELD
    ),
    *(
        ("; ".join(motif[1]), lambda w, x, motif=motif: refused_state.made(w, x, motif))
        for motif in refused_state.MOTIFS
    ),
]


@pytest.mark.parametrize(("text", "draw"), DRAWS, ids=[text for text, _ in DRAWS])
def test_what_is_drawn_to_be_refused_is_refused(
    text: str, draw: Callable[[Writer, str], object]
) -> None:
    """Refusals have a name and a line. None is dropped, and no other error is raised."""
    for shape in SHAPES:
        w = Writer(Seeded(1), training=True)
        x = w.line("{0} * 2", w.input(shape, grad=False))
        x = w.line(f"{w.member('conv', f'nn.Conv2d({shape[1]}, {shape[1]}, 1)')}({{0}})", x)
        try:
            draw(w, x)
        except RejectedError:
            continue
        last = [line.targets[0] for line in w.lines if line.targets][-1]
        net = load(w.program([w.line("{0} * 3", last)], "one", policy="keep").printed()).make()
        with pytest.raises(UnsupportedOpError, match=r"tvdnn cannot trace|network returns"):
            trace(net, (torch.randn(shape),))
        return
    raise AssertionError("torch takes it by none of the shapes")


REFUSED_KINDS = [each for each in KINDS.values() if each.refused]


@pytest.mark.parametrize("kind", REFUSED_KINDS, ids=lambda each: each.name)
def test_kinds_of_refused_things_are_drawn_and_refused(kind: Kind) -> None:
    for seed in range(50):
        drawn = drawn_from_seed(seed, (kind.name,), refused=100)
        outcome = compare(load(drawn.printed()))
        assert not outcome.is_fault, (outcome.why, drawn.printed())
        if outcome.kind == REFUSED:
            return
    raise AssertionError("none of 50 is refused")


def test_a_network_that_autograd_refuses_is_drawn_to_its_end() -> None:
    """A part of a split is changed in place, by layers that torch runs without gradients alone."""
    program = drawn_from_seed(10019230)
    net = load(program.printed()).make()
    with pytest.raises(RuntimeError, match="is being modified inplace"):
        net(*(torch.randn(each.shape) for each in program.inputs))
