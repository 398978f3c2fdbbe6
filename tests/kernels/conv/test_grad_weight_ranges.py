"""Weight gradients over ranges of splits, which need fewer running sums and have the same bits."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import Layer, make
from tests.kernels.conv.test_grad_weight import RUNS, TRANSPOSED, launch, planned, sums_of
from tests.kernels.numerics import poisoned
from tvdnn.kernels.conv.grad_weight import launch as conv_grad_weight
from tvdnn.kernels.conv.grad_weight import split_plan as conv_grad_weight_plan
from tvdnn.kernels.conv.grad_weight.running_sums import GradWeightPlan
from tvdnn.kernels.language.device import capability
from tvdnn.kernels.reduce import partials as reduce_partials

SPLITS, EDGES = (5 if torch.cuda.is_available() else 3), 2  # few programs for the interpreter
# By number of running sums, the lengths of the ranges: one split each, uneven ones, all at once.
SUMS = (1, 2, *range(3, SPLITS - 1), SPLITS + EDGES)


@pytest.fixture(autouse=True)
def own_plans() -> Iterator[None]:
    """Plans made under a test's constants end with it."""
    yield
    conv_grad_weight_plan.forget()


def split(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Sums have several splits and, of flat maps, edge splits. Units are short."""
    small_map = 1 if case.startswith(("flat", "taps")) else 28 * 28
    numbers = lambda _, steps, edge, *__: (SPLITS, EDGES if edge else 0)  # noqa: E731
    monkeypatch.setattr(conv_grad_weight_plan, "splits_of", numbers)
    planned(monkeypatch, UNIT_STEPS=1, SMALL_MAP=small_map)


def by_ranges(
    layer: Layer, whole: Tensor, plan: GradWeightPlan, rows: int, runs: tuple[int, ...], suffix: str
) -> Tensor:
    """The gradient from `rows` running sums, after checking that each has the bits of `whole`.

    Each range goes over the batch in a launch for each of these numbers of units, and one more.
    """
    kernel = getattr(conv_grad_weight, "conv2d_grad_weight" + suffix)
    add = getattr(reduce_partials, "sum_partials" + ("_reference" if suffix else ""))
    grad = poisoned(tuple(layer.weight.shape), torch.float32, layer.x.device)
    for splits in plan.ranges(rows):
        assert len(splits) <= rows
        sums, start = poisoned((len(splits), *whole.shape[1:]), torch.float32, layer.x.device), 0
        for units in (*runs, len(layer.x)):
            stop = start + units * plan.unit
            kernel(
                layer.x[start:stop], layer.dy[start:stop], sums,
                first=start == 0, splits=splits, **layer.shape.settings,
            )  # fmt: skip
            start = stop
        assert torch.equal(sums, whole[splits.start : splits.stop])
        add(sums, grad, first=splits.start == 0)
    return grad


def assert_ranges_equal(layer: Layer, rows: int, suffix: str = "") -> None:
    """Ranges, in one launch and in several over the batch, give the bits of all splits at once."""
    whole = launch(layer, sums_of(layer), suffix=suffix)
    add = getattr(reduce_partials, "sum_partials" + ("_reference" if suffix else ""))
    grad = poisoned(tuple(layer.weight.shape), torch.float32, layer.x.device)
    add(whole.weight, grad, first=True)
    for runs in ((), (1,)):
        found = by_ranges(layer, whole.weight, whole.plan, rows, runs, suffix)
        assert torch.equal(found, grad)


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("rows", SUMS)
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_ranges_have_the_bits_of_all_splits(
    case: str, rows: int, suffix: str, dtype: torch.dtype, generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    split(monkeypatch, case)
    shape = replace(RUNS[case], precision="tf32")
    layer = make(shape, dtype, generator)
    plan = sums_of(layer).plan
    assert plan.splits in (SPLITS, SPLITS + EDGES)
    assert plan.unit < len(layer.x)
    assert_ranges_equal(layer, rows, suffix)


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_fewer_sums_add_up_to_the_same_bits(
    case: str, suffix: str, dtype: torch.dtype, generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A launch of the whole batch has one sum of all splits but the last few."""
    split(monkeypatch, case)
    layer = make(replace(RUNS[case], precision="tf32"), dtype, generator)
    whole = launch(layer, sums_of(layer), suffix=suffix)
    shape, device = tuple(layer.weight.shape), layer.x.device
    expected, found = (poisoned(shape, torch.float32, device) for _ in range(2))
    add = getattr(reduce_partials, "sum_partials" + suffix)
    add(whole.weight, expected, first=True)
    for rows in range(2, whole.plan.splits):
        sums = poisoned((rows, *whole.weight.shape[1:]), torch.float32, device)
        kernel = getattr(conv_grad_weight, "conv2d_grad_weight" + suffix)
        kernel(layer.x, layer.dy, sums, first=True, **layer.shape.settings)
        add(sums, found, first=True)
        assert torch.equal(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("rows", [2, 4, 100])
def test_ranges_of_transposed_maps(
    name: str, rows: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if capability()[0] != 9:
        pytest.skip("maps are transposed on Hopper")
    planned(monkeypatch, transposed=True, TRANSPOSED_UNIT_STEPS=1)
    assert_ranges_equal(make(TRANSPOSED[name], torch.float32, generator), rows)


@pytest.mark.parametrize(
    ("plan", "rows", "starts"),
    [
        (GradWeightPlan(7, 1), 1, [0, 1, 2, 3, 4, 5, 6]),
        (GradWeightPlan(7, 1), 3, [0, 1, 4]),
        (GradWeightPlan(7, 1), 9, [0]),
        (GradWeightPlan(8, 1, 2), 5, [0, 4]),
    ],
)
def test_ranges_cover_all_splits_in_order(
    plan: GradWeightPlan, rows: int, starts: list[int]
) -> None:
    ranges = list(plan.ranges(rows))
    assert [each.start for each in ranges] == starts
    assert [number for each in ranges for number in each] == list(range(plan.splits))


def test_a_range_has_a_sum_for_each_split(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    split(monkeypatch, "flat")
    layer = make(replace(RUNS["flat"], precision="tf32"), torch.bfloat16, generator)
    sums = sums_of(layer).weight[:1]
    with pytest.raises(AssertionError, match="2 splits, 1 sums"):
        conv_grad_weight.conv2d_grad_weight(
            layer.x, layer.dy, sums, first=True, splits=range(2), **layer.shape.settings
        )
