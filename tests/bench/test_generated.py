"""Random networks, and networks that once were computed wrongly, against torch in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from bench import generated
from bench.generated import errors
from bench.generated.case import load, moved, moved_state
from bench.generated.compare import FAILED, REFUSED, RIGHT, TORCH, WRONG, Outcome, Setup, compare
from bench.generated.draw import drawn_from_seed, programs
from bench.generated.normalizations import written_out
from bench.generated.program import Input, Line, Member, Program
from bench.generated.returned import OBJECTS, maps_in
from bench.generated.shrink import shrunk
from tvdnn.ops import activation, registry
from tvdnn.ops.traced_op import TracedOp

KEPT = sorted((Path(generated.__file__).parent / "kept").glob("*.py"))
SLOW_SEEDS = {28, 59}  # that take seconds
SEEDS = sorted({*range(66)} - SLOW_SEEDS)


def outcome_of(text: str, dtype: str = "fp32") -> Outcome:
    outcome = compare(load(text), Setup(dtype))
    assert outcome.kind != TORCH, outcome.why
    return outcome


@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks_are_computed_as_torch_does(seed: int) -> None:
    program = drawn_from_seed(seed)
    outcome = compare(load(program.printed()))
    assert not outcome.is_fault, (outcome.why, *outcome.details, program.printed())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_networks_that_once_failed(path: Path, dtype: str) -> None:
    outcome = outcome_of(path.read_text(), dtype)
    assert not outcome.is_fault, (outcome.why, *outcome.details)


def test_a_network_that_once_failed_in_tf32() -> None:
    path = next(path for path in KEPT if path.stem == "saturated_sigmoid")
    outcome = outcome_of(path.read_text(), "tf32")
    assert not outcome.is_fault, (outcome.why, *outcome.details)


def program(*lines: str, members: tuple[Member, ...] = (), **settings: Any) -> Program:
    """A network of one input and these statements, each of which makes v0, v1, and so on."""
    made = tuple(Line((f"v{i}",), text, ("x",)) for i, text in enumerate(lines))
    given = (Input("x", (2, 3, 4, 4), grad=True),)
    last = made[-1].targets
    return Program(given, members, made, last, settings={"policy": "vdnn-all"} | settings)


def replace_translator(
    patch: pytest.MonkeyPatch, function: Callable[..., Any], translator: Callable[..., Any]
) -> None:
    """Translate calls of a function of torch's by another translator than its own."""
    changed = {**registry.FUNCTIONS, function: translator}
    patch.setattr("tvdnn.ops.translate.FUNCTIONS", changed)


CONV = Member("conv", "nn.Conv2d(3, 3, 1)")


def test_a_wrong_operator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sigmoid in tanh's place makes outputs and gradients wrong."""
    text = program("torch.tanh(self.conv({0}))", members=(CONV,)).printed()
    assert outcome_of(text).kind == RIGHT
    replace_translator(monkeypatch, torch.tanh, registry.METHODS["sigmoid"])
    found = outcome_of(text)
    assert (found.kind, found.why) == (WRONG, "output")


def test_a_slightly_wrong_operator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coefficient that is off by one part in 10,000 lies beyond float32's rounding."""
    text = program("F.leaky_relu(self.conv({0}), 0.3)", members=(CONV,)).printed()
    assert outcome_of(text).kind == RIGHT

    def off(out: tuple[int, ...], x: Node, negative_slope: float, inplace: bool) -> TracedOp:
        return activation.leaky_relu(out, x, negative_slope * 1.0001, inplace)

    replace_translator(monkeypatch, functional.leaky_relu, off)
    assert outcome_of(text).kind == WRONG


def test_refusals_failures_and_torchs_own_errors_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = program("torch.cumsum(self.conv({0}), 1)", members=(CONV,)).printed()
    found = outcome_of(refused)
    assert found.kind == REFUSED
    assert "cumsum" in found.why
    not_torch = program("{0} @ torch.ones(3, 3)").printed()
    assert compare(load(not_torch)).kind == TORCH

    def broken(out: tuple[int, ...], x: Node) -> TracedOp:
        raise KeyError("broken")

    replace_translator(monkeypatch, torch.tanh, broken)
    text = program("torch.tanh(self.conv({0}))", members=(CONV,)).printed()
    found = outcome_of(text)
    assert found.kind == FAILED
    assert "KeyError" in found.why


def test_what_cancels_is_scaled_by_its_terms() -> None:
    """The gradient of a bias before a batch normalization is zero but for rounding."""
    members = (CONV, Member("bn", "nn.BatchNorm2d(3)"))
    assert outcome_of(program("self.bn(self.conv({0}))", members=members).printed()).kind == RIGHT


def test_terms_that_cancel_are_measured() -> None:
    """3 x - 3 x has two terms of 3 each, and so has a gradient that is the difference of two."""

    def run() -> dict[str, Tensor | None]:
        x = torch.ones(5000, dtype=torch.float64, requires_grad=True)
        y = torch.mul(x, 3.0) - torch.mul(x, 3.0)
        y.sum().backward()
        return {"y": y.detach(), "gradient": x.grad}

    for size in errors.terms(run, run()).values():
        assert size == pytest.approx(3 * 2**0.5, rel=0.1)


def test_statistics_of_a_normalization_are_terms() -> None:
    """Two values in 1,000 +- 1 lose three digits when a rounded mean normalizes them."""

    def run() -> dict[str, Tensor | None]:
        x = torch.tensor([[[999.0, 1001.0]]], dtype=torch.float64, requires_grad=True)
        return {"y": functional.instance_norm(x.expand(1, 500, 2)).detach()}

    assert errors.terms(run, run())["y"] > 100


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 2, 3), (4, 1, 2, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_written_out_is_torchs(
    shape: tuple[int, ...], reduction: str, weighted: bool, smoothing: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)
    target.view(-1)[0] = -100
    weight = torch.rand(shape[1], generator=generator, dtype=torch.float64) if weighted else None
    options = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
    written = written_out(functional.cross_entropy, (x, target), options)
    torch.testing.assert_close(written, functional.cross_entropy(x, target, **options))


def test_the_loss_of_one_class_is_scaled_by_its_terms() -> None:
    x = torch.linspace(1, 2, 16, dtype=torch.float64).view(4, 1, 2, 2).requires_grad_()
    target = torch.zeros(4, 2, 2, dtype=torch.int64)

    def run() -> dict[str, Tensor | None]:
        return {"loss": functional.cross_entropy(2 * x, target).detach()}

    assert run()["loss"] == 0
    assert 0.1 < errors.terms(run, run())["loss"] < 10


def test_eagers_error_is_the_largest_of_runs_on_moved_data() -> None:
    exact = {"a": torch.zeros(2), "b": None}
    others = [{"a": torch.full((2,), value), "b": None} for value in (0.5, -2.0, 1.0)]
    assert errors.largest({"a": 1.5}, others, exact) == {"a": 2.0}
    x = torch.randn(100)
    near = moved(x, "bf16", 1)
    assert ((near - x).abs() <= x.abs() * 1.001 * 2.0**-8).all()
    assert 0 < (near > x).sum() < 100
    assert not torch.equal(near, moved(x, "bf16", 2))
    state = torch.nn.BatchNorm2d(3).state_dict()
    twin = moved_state(state, "fp32", 1)
    assert twin["num_batches_tracked"] is state["num_batches_tracked"]
    assert twin._metadata == state._metadata
    assert (twin["weight"] != state["weight"]).any()


def test_the_same_seed_draws_the_same_network() -> None:
    first, second = (drawn_from_seed(7).printed() for _ in range(2))
    assert first == second != drawn_from_seed(8).printed()


@settings(max_examples=25, derandomize=True, database=None, deadline=None)
@given(programs())
def test_what_hypothesis_draws_runs_by_torch(drawn: Program) -> None:
    """The printed module runs on inputs of the shapes that it names."""
    case = load(drawn.printed())
    inputs = [torch.randn(shape) for shape in case.shapes.values()]
    maps, _ = maps_in(case.make_torch()(*inputs))
    assert len(maps) == len(drawn.outputs) or (maps and drawn.form in OBJECTS)


def test_what_fails_is_shrunk_to_what_makes_it_fail() -> None:
    """Only the wanted statement of a random network is left."""

    def fails(each: Program) -> bool:
        return "relu" in each.printed() and compare(load(each.printed())).kind == RIGHT

    seed = next(seed for seed in range(100) if fails(drawn_from_seed(seed)))
    least = shrunk(drawn_from_seed(seed), fails, seconds=60)
    assert len(least.lines) <= 3
    assert fails(least)
