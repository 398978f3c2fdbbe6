"""Weight gradients that sum windows of rows, whose bits do not depend on cuts, splits or ranges."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.kernels.conv.conv_layers import DTYPES, PARTIAL_TOLERANCE, Shape, make
from tests.kernels.conv.test_grad_weight import (
    Sums,
    assert_runs_equal,
    launch,
    plan_on_h200,
    planned,
    sums_of,
)
from tests.kernels.conv.test_grad_weight_ranges import assert_ranges_equal
from tests.kernels.numerics import as_range, poisoned, rms_error
from tvdnn.kernels.conv.grad_weight import split_plan as conv_grad_weight_plan
from tvdnn.kernels.conv.grad_weight.shape import GradWeightShape
from tvdnn.kernels.conv.grad_weight.split_plan import filter_of_sums, grad_weight_plan, work_of
from tvdnn.kernels.conv.row_windows import row_window

SPLITS = 3  # few programs for the interpreter
FIRST = Shape((5, 33, 32), (3, 16), (7, 7), (2, 2), (3, 3), precision="tf32")
SHAPES = {
    "first layer": FIRST,
    "first layer, odd sides": replace(FIRST, x=(5, 32, 34)),
    "first layer, one channel": Shape((9, 14, 12), (1, 8), precision="tf32"),
    "patches": Shape((65, 12, 16), (3, 24), (4, 4), (4, 4), (0, 0), precision="tf32"),
    "18 channels": Shape((9, 13, 16), (18, 18), precision="tf32"),
    "26 channels": Shape((9, 14, 14), (26, 52), stride=(2, 2), precision="tf32"),
    "24 channels": Shape((6, 16, 16), (24, 24), precision="tf32"),
    "48 channels": Shape((9, 9, 7), (48, 40), (3, 5), padding=(0, 1), precision="tf32"),
    "more padding than taps": Shape((9, 9, 16), (20, 16), (2, 2), padding=(3, 4), precision="tf32"),
    "200 channels": Shape((5, 8, 8), (200, 18), precision="tf32"),
}


@pytest.fixture(autouse=True)
def own_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sums have several splits, and units are short."""
    monkeypatch.setattr(conv_grad_weight_plan, "splits_of", lambda *_: (SPLITS, 0))
    planned(monkeypatch, windows=True, UNIT_STEPS=1)
    yield
    conv_grad_weight_plan.forget()


def kernel_of(
    shape: Shape, sides: tuple[tuple[int, int], tuple[int, int]], dtype: torch.dtype
) -> str:
    c, k = shape.channels
    settings = {name: each for name, each in shape.settings.items() if name != "precision"}
    taps = filter_of_sums((k, c, *shape.size), **settings, dtype=dtype, precision="tf32")
    return work_of(GradWeightShape(*sides, taps, dtype, "tf32", shape.channels)).kernel


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_have_the_sums_and_bits_of_every_cut(
    name: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer = make(SHAPES[name], dtype, generator)
    sides = tuple(layer.x.shape[1:3]), tuple(layer.dy.shape[1:3])
    assert kernel_of(layer.shape, sides, dtype) == "windows"
    whole, expected = (
        launch(layer, sums_of(layer)),
        launch(layer, sums_of(layer), suffix="_reference"),
    )
    assert rms_error(whole.weight.sum(0), expected.weight.sum(0)) < PARTIAL_TOLERANCE
    assert whole.plan.unit < len(layer.x)
    assert_runs_equal(layer, whole)
    ranges = replace(layer, x=as_range(layer.x), dy=as_range(layer.dy))
    assert torch.equal(launch(ranges, sums_of(ranges)).weight, whole.weight)


@pytest.mark.parametrize("name", ["18 channels", "26 channels"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_between_pixels_adds_to_no_sum(
    name: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Maps are padded to whole 16 bytes, which may hold anything, also NaN."""
    layer, step = make(SHAPES[name], dtype, generator), 16 // dtype.itemsize
    x, dy = (as_range(each, before=0, after=-each.shape[3] % step) for each in (layer.x, layer.dy))
    padded, sums = replace(layer, x=x, dy=dy), sums_of(layer)
    k, c, r, s = layer.weight.shape
    plan = grad_weight_plan(
        tuple(x.shape[1:3]), tuple(dy.shape[1:3]), (k, c, r, s), **layer.shape.settings,
        dtype=x.dtype, pitches=(x.stride(2), dy.stride(2)),
    )  # fmt: skip
    found = Sums(plan, poisoned((plan.splits, k, r, s, c), torch.float32, x.device))
    launch(padded, found)
    launch(layer, sums, suffix="_reference")
    assert rms_error(found.weight.sum(0), sums.weight.sum(0)) < PARTIAL_TOLERANCE


@pytest.mark.parametrize("name", ["first layer", "24 channels", "48 channels"])
@pytest.mark.parametrize("rows", [4, 9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ranges_of_splits_have_the_bits_of_all(
    name: str, rows: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Adjacent outputs of a window have adjacent splits, which no range parts."""
    assert_ranges_equal(make(SHAPES[name], dtype, generator), rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_ignore_what_lies_outside_their_maps(
    dtype: torch.dtype, generator: torch.Generator
) -> None:
    """NaN in the last row and column reach the taps that read it, and no others."""
    layer = make(SHAPES["24 channels"], dtype, generator)
    layer.x[:, -1, :], layer.x[:, :, -1] = float("nan"), float("nan")
    found, expected = (launch(layer, sums_of(layer), suffix=each) for each in ("", "_reference"))
    for each in (found, expected):
        assert each.weight.sum(0)[:, 0, 0].isfinite().all()
        assert each.weight.sum(0)[:, 2].isnan().all()


@pytest.mark.parametrize(
    ("channels", "size", "stride", "pad", "width", "outputs", "expected"),
    [
        (3, 7, 2, 3, 224, 1, (1, 22, 2)),
        (3, 7, 2, 3, 224, 2, (3, 32, 4)),
        (3, 7, 2, 3, 299, 2, (0, 27, 1)),
        (3, 7, 2, 3, 298, 2, (1, 28, 2)),
        (24, 3, 1, 1, 192, 1, (0, 72, 8)),
        (18, 3, 1, 1, 56, 2, (2, 76, 4)),
        (3, 4, 4, 0, 224, 1, (0, 12, 4)),
    ],
)
def test_windows_start_at_multiples_of_their_vectors(
    channels: int, size: int, stride: int, pad: int, width: int, outputs: int,
    expected: tuple[int, int, int],
) -> None:  # fmt: skip
    shape = Shape((1, 1, width), (channels, 8), (size, size), (stride, stride), (pad, pad))
    settings = {name: each for name, each in shape.settings.items() if name != "precision"}
    taps = filter_of_sums(
        (8, channels, size, size), **settings, dtype=torch.bfloat16, precision="ieee"
    )
    window = row_window(taps, width, outputs, torch.bfloat16)
    assert (window.lead, window.size, window.vector) == expected


def test_plans_of_few_channels_fill_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs of four adjacent outputs, and one of two, to each SM."""
    monkeypatch.undo()
    conv_grad_weight_plan.forget()
    plan = plan_on_h200(192, (24, 24), torch.bfloat16, monkeypatch)
    assert (plan.splits, plan.step) == (256, 4)
