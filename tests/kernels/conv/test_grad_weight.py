"""Weight gradients of convolutions against references, and these against autograd."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import (
    BANDS,
    ON_GPU,
    PARTIAL_TOLERANCE,
    SHAPES,
    TOLERANCE,
    Layer,
    Shape,
    gradients,
    make,
)
from tests.kernels.numerics import as_range, assert_repeatable, poisoned, rms_error
from tvdnn.kernels.conv.grad_weight import launch as conv_grad_weight
from tvdnn.kernels.conv.grad_weight import split_plan as conv_grad_weight_plan
from tvdnn.kernels.conv.grad_weight.running_sums import GradWeightPlan
from tvdnn.kernels.conv.grad_weight.split_plan import grad_weight_plan
from tvdnn.kernels.conv.grad_weight.transposed_plan import transposed_row
from tvdnn.kernels.language.device import capability
from tvdnn.kernels.language.rounding import stored_reference

FLAT = {name: SHAPES[name] for name in SHAPES if name.startswith("box")}
FLAT |= {name: BANDS[name] for name in ("fours", "eights", "twenty-fours", "more outputs")}
FLAT |= {name: BANDS[name] for name in ("forties", "hundred and twelves", "tiles beside groups")}
FLAT["box, dilated"] = replace(FLAT["box, dilated"], x=(1, 9, 9))  # of two splits at the edges
TAPS = {
    "taps": Shape((3, 4, 3), (32, 72), precision="tf32"),
    "taps, dilated": Shape((2, 7, 7), (64, 128), padding=(2, 2), dilation=(2, 2), precision="tf32"),
    "taps in groups": Shape((2, 4, 3), (128, 256), groups=2, precision="tf32"),
}
TRANSPOSED = {
    "one sample a row": Shape((3, 30, 32), (48, 200), precision="tf32"),
    "samples share rows": Shape((37, 7, 7), (64, 96), precision="tf32"),
    "two sums": Shape((9, 13, 24), (32, 64), precision="tf32"),
    "groups of 4": Shape((37, 14, 14), (128, 128), groups=32, precision="tf32"),
    "groups of 24": Shape((37, 14, 14), (120, 120), groups=5, precision="tf32"),
    "groups of 40": Shape((37, 14, 14), (120, 120), groups=3, precision="tf32"),
    "groups of 112": Shape((37, 7, 7), (224, 224), groups=2, precision="tf32"),
    "groups of 128": Shape((37, 7, 7), (256, 256), groups=2, precision="tf32"),
    "two columns, no padding": Shape(
        (5, 9, 33), (64, 64), (3, 2), padding=(2, 0), precision="tf32"
    ),
}
H200 = {"capability": (9, 0), "num_sms": 132, "shared_nbytes": 232448, "available": True}


@dataclass(frozen=True, slots=True)
class Sums:
    """The running sums of a layer, poisoned, and its plan."""

    plan: GradWeightPlan
    weight: Tensor


def sums_of(layer: Layer) -> Sums:
    k, c, r, s = layer.weight.shape
    plan = grad_weight_plan(
        tuple(layer.x.shape[1:3]), tuple(layer.dy.shape[1:3]), (k, c, r, s),
        **layer.shape.settings, dtype=layer.x.dtype,
    )  # fmt: skip
    device = layer.x.device
    return Sums(plan, poisoned((plan.splits, k, r, s, c), torch.float32, device))


def launch(layer: Layer, sums: Sums, *, suffix: str = "", runs: tuple[int, ...] = ()) -> Sums:
    """The sums after a launch over each of these numbers of units, and one over the rest."""
    start, kernel = 0, getattr(conv_grad_weight, "conv2d_grad_weight" + suffix)
    for units in (*runs, len(layer.x)):
        stop = start + units * sums.plan.unit
        kernel(
            layer.x[start:stop], layer.dy[start:stop], sums.weight,
            first=start == 0, **layer.shape.settings,
        )  # fmt: skip
        start = stop
    return sums


def planned(
    monkeypatch: pytest.MonkeyPatch, *, transposed: bool = False, columns: bool = False,
    windows: bool = False, **constants: int,
) -> None:  # fmt: skip
    """Plans follow from these constants for a while.

    They transpose rows only if `transposed`, or columns only if `columns`, and sum windows of rows
    only if `windows`.
    """
    for name, value in constants.items():
        monkeypatch.setattr(conv_grad_weight_plan, name, value)
    if not transposed:
        monkeypatch.setattr(conv_grad_weight_plan, "suits_transposing", lambda *_: False)
    if not columns:
        monkeypatch.setattr(conv_grad_weight_plan, "suits_columns", lambda *_: False)
    if not windows:
        monkeypatch.setattr(conv_grad_weight_plan, "suits_windows", lambda *_, **__: False)
    conv_grad_weight_plan.forget()


@pytest.fixture(autouse=True)
def own_plans() -> Iterator[None]:
    """Plans made under a test's constants end with it."""
    yield
    conv_grad_weight_plan.forget()


def test_references_match_autograd(layer: Layer, dtype: torch.dtype) -> None:
    _, _, dweight, _ = gradients(layer)
    sums = launch(layer, sums_of(layer), suffix="_reference")
    assert rms_error(sums.weight.sum(0).permute(0, 3, 1, 2), dweight) < TOLERANCE[dtype]


def test_gradients(layer: Layer) -> None:
    sums = launch(layer, sums_of(layer))
    expected = launch(layer, sums_of(layer), suffix="_reference")
    assert rms_error(sums.weight.sum(0), expected.weight.sum(0)) < PARTIAL_TOLERANCE


def test_the_reference_shows_onednn_no_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of one channel lie in both orders; taken for channels last, oneDNN spoils memory."""
    seen: list[tuple[int, ...]] = []
    plain = conv_grad_weight.conv2d_weight

    def noting(x: Tensor, size: list[int], dy: Tensor, **geometry: object) -> Tensor:
        seen.extend((x.stride(), dy.stride()))
        found: Tensor = plain(x, size, dy, **geometry)
        return found

    monkeypatch.setattr(conv_grad_weight, "conv2d_weight", noting)
    x, dy = torch.randn(2, 5, 3, 1), torch.randn(2, 5, 3, 1)
    partials = torch.zeros(1, 1, 1, 1, 1)
    conv_grad_weight.conv2d_grad_weight_reference(
        x, dy, partials, first=True, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1,
        precision="ieee",
    )  # fmt: skip
    torch.testing.assert_close(partials.sum(), (x * dy).sum())
    assert set(seen) == {(15, 15, 3, 1)}


@pytest.mark.parametrize("shape", (FLAT | TAPS).values(), ids=FLAT | TAPS)
def test_large_maps_are_flat(
    shape: Shape, dtype: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, SMALL_MAP=1)
    layer = make(shape, dtype, generator)
    x, dy = (maps.bfloat16().to(dtype) for maps in (layer.x, layer.dy))  # exact in TF32 too
    test_gradients(replace(layer, x=x, dy=dy))


@pytest.mark.parametrize("name", ["box", "box, odd channels", "box, dilated", "eights", "wide"])
def test_pointers_take_every_shape(
    name: str, dtype: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_grad_weight_plan, "capability", lambda: (8, 0))
    test_gradients(make(replace(SHAPES[name], precision="ieee"), dtype, generator))


RUNS = {
    "first layer": replace(SHAPES["first layer"], x=(3, 5, 7)),
    "stride 2": replace(SHAPES["stride 2"], x=(3, 6, 8)),
    "groups": replace(SHAPES["groups"], x=(3, 3, 6), size=(1, 3), padding=(0, 1)),
    "flat": replace(SHAPES["box"], x=(3, 4, 3)),
    "taps": replace(TAPS["taps"], x=(3, 4, 3)),
    "samples": replace(SHAPES["samples"], x=(150, 2, 2)),
    "fours": replace(SHAPES["fours"], x=(150, 2, 2)),
    "forties": replace(SHAPES["forties"], x=(150, 2, 2)),
    "flat, eights": replace(SHAPES["eights"], x=(3, 4, 3)),
    "flat, forties": replace(SHAPES["forties"], x=(3, 4, 3)),
}


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_runs_have_the_bits_of_the_whole(
    case: str, suffix: str, dtype: torch.dtype, generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The sums have the same bits wherever a batch is cut between units."""
    small_map = 1 if case.startswith(("flat", "taps")) else 28 * 28
    planned(monkeypatch, UNIT_STEPS=1, SMALL_MAP=small_map)
    layer = make(RUNS[case], dtype, generator)
    whole = launch(layer, sums_of(layer), suffix=suffix)
    assert whole.plan.unit * 2 < len(layer.x)
    assert_runs_equal(layer, whole, suffix)


@pytest.mark.parametrize("case", RUNS)
def test_ranges_of_wider_maps(
    case: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges have the bits of maps of their own."""
    planned(monkeypatch, SMALL_MAP=1 if case.startswith(("flat", "taps")) else 28 * 28)
    shape = replace(RUNS[case], precision="tf32")
    layer = make(replace(shape, x=(2, *shape.x[1:])), torch.bfloat16, generator)
    ranges = replace(layer, x=as_range(layer.x), dy=as_range(layer.dy))
    whole, part = (launch(each, sums_of(each)).weight for each in (layer, ranges))
    assert torch.equal(whole, part)


def assert_runs_equal(layer: Layer, whole: Sums, suffix: str = "") -> None:
    for runs in ((1,), (1, 1), (2,)):
        cut = launch(layer, sums_of(layer), suffix=suffix, runs=runs)
        assert torch.equal(whole.weight, cut.weight)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_maps(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF32 on Hopper, against float64; cut anywhere, or of ranges, the sums have the same bits."""
    planned(monkeypatch, transposed=True, TRANSPOSED_UNIT_STEPS=1)
    assert_sums_by_warpgroups(TRANSPOSED[name], generator)


def rounded_layer(shape: Shape, generator: torch.Generator) -> Layer:
    """A layer whose maps TF32 holds."""
    layer = make(shape, torch.float32, generator)
    x, dy = (stored_reference(maps, torch.float32, "tf32") for maps in (layer.x, layer.dy))
    return replace(layer, x=x, dy=dy)


def assert_sums_by_warpgroups(shape: Shape, generator: torch.Generator) -> None:
    if capability()[0] != 9:
        pytest.skip("maps are transposed on Hopper")
    layer = rounded_layer(shape, generator)
    whole = launch(layer, sums_of(layer))
    assert (
        rms_error(whole.weight.sum(0).permute(0, 3, 1, 2), gradients(layer)[2]) < PARTIAL_TOLERANCE
    )
    assert whole.plan.unit < len(layer.x)
    assert_runs_equal(layer, whole)
    ranges = replace(layer, x=as_range(layer.x), dy=as_range(layer.dy))
    assert torch.equal(launch(ranges, sums_of(ranges)).weight, whole.weight)


@pytest.mark.parametrize("name", ["first layer", "box"])
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_no_samples_leave_sums_as_they_are(
    name: str, suffix: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer = make(replace(SHAPES[name], x=(0, *SHAPES[name].x[1:])), dtype, generator)
    sums = sums_of(layer)
    sums.weight.fill_(1.0)
    getattr(conv_grad_weight, "conv2d_grad_weight" + suffix)(
        layer.x, layer.dy, sums.weight, first=False, **layer.shape.settings
    )
    assert (sums.weight == 1.0).all()


@pytest.mark.parametrize(
    ("side", "channels", "splits"),
    [
        (224, (3, 64), 264),
        (224, (64, 64), 29),
        (112, (64, 128), 44),
        (56, (256, 256), 8),
        (28, (512, 512), 7),
        (14, (512, 512), 5),
    ],
)
def test_plans_fill_an_h200(
    side: int, channels: tuple[int, int], splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums stay under 128 MiB; the tiles of 64->64 take 28 splits of two to each SM, and one
    that sums what wraps around the edges."""
    plan = plan_on_h200(side, channels, torch.bfloat16, monkeypatch)
    assert plan.splits == splits
    assert plan.splits * channels[0] * channels[1] * 36 <= 128 << 20
    assert plan.unit <= 64


@pytest.mark.parametrize(
    ("side", "channels", "splits", "unit"),
    [
        (224, (64, 64), 88, 2),
        (112, (64, 128), 44, 8),
        (56, (256, 256), 11, 32),
        (28, (512, 512), 4, 64),
        (14, (512, 512), 4, 64),
    ],
)
def test_plans_of_transposed_maps_fill_an_h200(
    side: int, channels: tuple[int, int], splits: int, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of 128 x 3 x 64 sums, one to each SM; of 64 output channels each leaves two."""
    plan = plan_on_h200(side, channels, torch.float32, monkeypatch)
    assert (plan.splits, plan.unit) == (splits, unit)


def plan_on_h200(
    side: int, channels: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, *,
    size: int = 3, stride: int = 1,
) -> GradWeightPlan:  # fmt: skip
    """The plan of a square convolution that keeps its sides at stride 1."""
    for name, value in H200.items():
        monkeypatch.setattr(conv_grad_weight_plan, name, lambda value=value: value)
    geometry = {"stride": (stride, stride), "padding": (size // 2, size // 2), "dilation": (1, 1)}
    shape, out_side = (channels[1], channels[0], size, size), -(-side // stride)
    return grad_weight_plan(
        (side, side), (out_side, out_side), shape, **geometry, groups=1, dtype=dtype,
        precision="tf32",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("width", "row"), [(224, (1, 32)), (112, (2, 16)), (56, (4, 8)), (14, (16, 2)), (13, (32, 1))]
)
def test_rows_of_transposed_maps_overrun_none(width: int, row: tuple[int, int]) -> None:
    assert transposed_row(width) == row


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_repeats_to_the_bit(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    layer = make(ON_GPU[name], dtype, generator)
    sums = sums_of(layer)
    assert_repeatable(lambda: launch(layer, sums), sums.weight)
