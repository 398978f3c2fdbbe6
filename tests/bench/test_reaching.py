"""Random networks that reach outside themselves, ask of maps, and return objects."""

import pytest
import torch

from bench.generated.case import load
from bench.generated.compare import REFUSED, RIGHT, Outcome, Setup, compare
from bench.generated.draw import drawn_from_seed
from bench.generated.program import Input, Line, Member, Program
from bench.generated.returned import OBJECTS, REFUSED_FORMS, maps_in


def outcome(form: str = "one", part: str = "nn.ReLU()", *, grad: bool = False) -> Outcome:
    members = (Member("conv0", "nn.Conv2d(4, 4, 1)"), Member("part0", part))
    lines = (Line(("v0",), "self.conv0({0})", ("x",)), Line(("v1",), "self.part0({0})", ("v0",)))
    inputs = (Input("x", (2, 4, 3, 5), grad),)
    outputs = ("v1",) if form == "one" else ("v0", "v1")
    program = Program(inputs, members, lines, outputs, form, settings={"policy": "vdnn-all"})
    return compare(load(program.printed()), Setup())


@pytest.mark.parametrize("form", OBJECTS)
def test_objects_of_maps_are_those_of_torch(form: str) -> None:
    assert outcome(form, grad=True).kind == RIGHT


@pytest.mark.parametrize("form", REFUSED_FORMS)
def test_other_objects_are_refused_by_name(form: str) -> None:
    found = outcome(form)
    assert found.kind == REFUSED
    assert "the network returns" in found.why


@pytest.mark.parametrize("how", range(16))
def test_changes_outside_are_refused_by_name(how: int) -> None:
    found = outcome(part=f"Changing({how})")
    assert found.kind == REFUSED
    assert "forward changes the" in found.why


@pytest.mark.parametrize("how", range(7))
def test_what_is_read_outside_is_as_in_torch(how: int) -> None:
    assert outcome(part=f"Reading({how})").kind == RIGHT


@pytest.mark.parametrize("how", range(9))
def test_what_forward_asks_is_answered_as_in_torch(how: int) -> None:
    assert outcome(part=f"Inspecting({how}, 4)").kind == RIGHT


@pytest.mark.parametrize("how", range(7))
def test_what_is_not_known_before_a_step_is_refused(how: int) -> None:
    assert outcome(part=f"Puzzling({how}, 4)").kind == REFUSED


@pytest.mark.parametrize("seed", range(4))
def test_what_hangs_on_the_layout_of_inputs_is_refused(seed: int) -> None:
    drawn = drawn_from_seed(seed, ["refused_layout"], refused=100)
    assert compare(load(drawn.printed()), Setup()).kind == REFUSED


def test_a_form_is_told_by_its_classes_and_plain_values() -> None:
    x = torch.ones(2)
    forms = [x, [x], (x,), {"a": x}, {"b": x}, [x, None], [x, 1], [x, 2], [[x]]]
    assert len({maps_in(each)[1] for each in forms}) == len(forms)
    assert maps_in({"a": [x, {"b": x}]})[0].keys() == {"a.0", "a.1.b"}
