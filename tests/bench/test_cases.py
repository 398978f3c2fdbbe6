"""The measured rows of kernels compare like with like, and their rates are possible."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.cases.case import kernel_cases
from bench.cases.conv.layers import GROUPED, NETWORKS, RESNET50, VGG16
from bench.cases.launch import Call, Launch
from bench.cases.operands import Operands
from bench.kernel_rates import MOST_SHARE, MeasuredCase, measured_cases, rates_of, recomputed
from bench.kernel_rows import SETS
from bench.kernels import errors
from bench.tables import RESULTS
from bench.timing import CACHED_NBYTES, Ceilings
from tvdnn.kernels.conv.conv2d import conv2d
from tvdnn.kernels.language.cost import cost_of
from tvdnn.kernels.pointwise.activation import relu

VGG16_MACS = 15_346_630_656  # of the convolutions, for one image (Simonyan and Zisserman 2014)
RESNET50_MACS = 4_087_136_256
FILES = sorted((RESULTS / "kernels").glob("*.json"))
CASES = {(each.measured.set, each.measured.kernel): each for each in measured_cases()}
CUDNN_ALONE = ("conv2d, ReLU", "conv2d_max_pool")  # torch has no such operation on a CPU
META = torch.device("meta")
CEILINGS = Ceilings(bytes_per_s=4e12, flops_per_s={"bf16": 8e14}, cached_bytes_per_s=8e12)


def test_layers_are_those_of_the_networks() -> None:
    assert [sum(layer.count for layer in net) for net in (VGG16, RESNET50)] == [13, 53]
    macs = [sum(layer.count * layer.macs for layer in net) for net in (VGG16, RESNET50)]
    assert macs == [VGG16_MACS, RESNET50_MACS]


def test_layers_in_groups_are_those_of_the_networks() -> None:
    """Each has as many 3x3 convolutions in groups as blocks; ResNeXt-50 32x4d from 128 channels."""
    counts = {name: sum(layer.count for layer in NETWORKS[name]) for name in GROUPED}
    assert counts == {
        "resnext50": 16, "resnext101": 33, "regnet_y_400mf": 16, "regnet_y_3_2gf": 21,
        "regnet_y_16gf": 18,
    }  # fmt: skip
    shapes = [(layer.side, layer.shape, layer.stride) for layer in NETWORKS["resnext50"]]
    assert shapes[:2] == [(56, (128, 4, 3, 3), 1), (56, (256, 8, 3, 3), 2)]
    assert shapes[-1] == (7, (1024, 32, 3, 3), 1)
    widths = {name: {layer.shape[1] for layer in NETWORKS[name]} for name in GROUPED}
    assert (widths["regnet_y_3_2gf"], widths["regnet_y_16gf"]) == ({24}, {112})


def test_rows_are_of_all_sets_and_each_once() -> None:
    rows = [(each.measured.set, each.measured.kernel, each.shape) for each in measured_cases()]
    assert len({*rows}) == len(rows)
    assert {name for name, *_ in rows} == {*SETS}


@pytest.mark.parametrize("case", CASES.values(), ids=[" ".join(each) for each in CASES])
def test_both_sides_of_a_row_compute_the_same(
    case: MeasuredCase, generator: torch.Generator
) -> None:
    """The type is float32: on a CPU torch has few operations in bfloat16."""
    with generator.device:
        launch = case.make(Operands(generator.device, generator), "tf32", small=True)
        launch.prepare()
        peer = launch.peer
        assert peer is not None
        if case.measured.kernel in CUDNN_ALONE and generator.device.type == "cpu":
            peer = replace(peer, same_numbers=False)  # only ours has numbers to compare
        ours, theirs = errors(launch, peer)
    assert ours < 5e-3  # bfloat16 rounds by half of that
    assert theirs is None or theirs < 5e-3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_measured_row_is_above_its_roofline(path: Path) -> None:
    rows = json.loads(path.read_text())["rows"]
    assert rows
    above = [row for row in rows if row["roofline_share"] > MOST_SHARE]
    assert not above


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rates_of_measured_rows_are_what_the_kernels_state(path: Path) -> None:
    document = json.loads(path.read_text())
    assert recomputed(document)["rows"] == document["rows"]


def test_a_row_that_is_too_fast_is_seen() -> None:
    document = json.loads(FILES[0].read_text())
    row = document["rows"][0]
    shares = [
        recomputed({**document, "rows": [{**row, "ms": ms}]})["rows"][0]["roofline_share"]
        for ms in (row["ms"], row["ms"] / 10)
    ]
    assert shares[0] <= MOST_SHARE < shares[1]


def test_costs_count_neither_padding_nor_pixels_that_no_window_reads() -> None:
    settings = {"padding": (0, 0), "dilation": (1, 1), "groups": 1, "precision": "tf32"}
    x, packed, y = (
        torch.empty(shape, device=META) for shape in ((2, 8, 8, 4), (6, 1, 1, 4), (2, 4, 4, 6))
    )
    strided = cost_of(conv2d, x, packed, None, y, stride=(2, 2), **settings)
    assert strided == (2 * y.numel() * 4, 4 * (x.numel() / 4 + packed.numel() + y.numel()))
    packed, y = torch.empty(6, 3, 3, 4, device=META), torch.empty(2, 8, 8, 6, device=META)
    padded = cost_of(conv2d, x, packed, None, y, stride=(1, 1), **settings | {"padding": (1, 1)})
    assert padded.flops == 2 * 2 * 6 * 4 * (3 * 8 - 2) ** 2


def test_small_operands_move_at_the_rate_of_the_cache() -> None:
    below, above = CACHED_NBYTES, CACHED_NBYTES + 1
    assert CEILINGS.least_s(0, below, "bf16") == below / 8e12
    assert CEILINGS.least_s(0, above, "bf16") == above / 4e12
    assert replace(CEILINGS, cached_bytes_per_s=None).least_s(0, below, "bf16") == below / 4e12
    assert CEILINGS.least_s(8e14, below, "bf16") == 1


def test_scratch_between_calls_costs_nothing() -> None:
    x, y = torch.empty(1000, device=META), torch.empty(1000, device=META)
    calls = (Call(relu, (x, y), {}), Call(relu, (y, x), {}))
    assert rates_of(Launch(calls), CEILINGS, "bf16").nbytes == 16000
    assert rates_of(Launch(calls, scratch=(y,)), CEILINGS, "bf16").nbytes == 8000


def test_the_floor_of_a_codec_is_its_sections_and_their_codes() -> None:
    """Bytes a value, of which half are 0 where the codec packs; a count is cleared before."""
    codes = {"sign_bits": 1 / 8, "bitmap": 33 / 256 + 1, "ssdc": 12 / 1024 + 1.5, "tf32": 18 / 8}
    codes |= {"fp16": 2, "fp10": 4 / 3, "fp8": 1}
    for name, nbytes in codes.items():
        for verb in ("encode", "decode") if name != "sign_bits" else ("encode",):
            case = CASES["codecs", f"{name}_{verb}"]
            (cost,) = case.make(Operands(META), "bf16").costs
            raw = 2 if case.measured.typed else 4
            assert cost.nbytes / (2**28 / raw) == pytest.approx(raw + nbytes, rel=1e-6)


def test_cases_are_found_in_the_packages_of_kernels() -> None:
    for case in kernel_cases():
        made_by = getattr(case.make, "func", case.make).__module__
        home = case.launcher.__module__.removeprefix("tvdnn.kernels.")
        assert made_by == f"bench.cases.{home}"
