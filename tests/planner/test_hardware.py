"""Hardware profiles: the machines there are, their numbers, and launches priced from them."""

import pytest

from tvdnn.errors import InputError
from tvdnn.graph import Direction, Pass
from tvdnn.planner.ir.costs import Hardware, Roofline
from tvdnn.planner.ir.hardware import FOLDER, load, names
from tvdnn.planner.ir.plan import HOST

FROM_DATA_SHEETS = {
    # name: bf16, tf32 and fp32 TFLOP/s, memory GB/s, memory GiB, link GB/s
    "H100": (989, 494, 67, 3350, 80, 55.4),
    "A100": (312, 156, 19.5, 2039, 80, 25),
    "V100": (15.7, 15.7, 15.7, 900, 32, 12.8),
    "T4": (8.1, 8.1, 8.1, 320, 16, 12.8),
    "RTX 4090": (165.2, 82.6, 82.6, 1008, 24, 25),
    "RTX 3090": (71, 35.6, 35.6, 936, 24, 25),
    "K40c": (4.29, 4.29, 4.29, 288, 12, 12.8),
    "Titan X Maxwell": (7, 7, 7, 336.5, 12, 12.8),
    "Titan Xp": (12.15, 12.15, 12.15, 547.7, 12, 12.8),
}
WITHOUT_NARROW_FLOATS = ("V100", "T4", "K40c", "Titan X Maxwell", "Titan Xp")


def launch(flops: float, nbytes: float) -> Pass:
    """A pass over 64 rows that takes so many operations and bytes in all."""
    return Pass(
        "conv forward",
        "conv",
        "forward",
        Direction.FORWARD,
        64,
        8,
        (),
        (),
        flops=flops,
        nbytes=nbytes,
    )


@pytest.fixture(params=names())
def profile(request: pytest.FixtureRequest) -> Hardware:
    return load(request.param)


def test_names_every_machine_once() -> None:
    assert set(names()) == {"H200", *FROM_DATA_SHEETS}
    assert len(names()) == len(list(FOLDER.glob("*.json")))


@pytest.mark.parametrize("name", FROM_DATA_SHEETS)
def test_data_sheet_numbers(name: str) -> None:
    bf16, tf32, fp32, bandwidth, memory, link = FROM_DATA_SHEETS[name]
    profile = load(name)
    rates = {"bf16": bf16 * 1e12, "tf32": tf32 * 1e12, "fp32": fp32 * 1e12}
    assert profile.flops == pytest.approx(rates, rel=1e-12)
    assert profile.bandwidth == pytest.approx(bandwidth * 1e9, rel=1e-12)
    assert profile.memory_nbytes == memory * 2**30
    assert profile.links[HOST].out == pytest.approx(link * 1e9, rel=1e-12)


def test_the_h200_is_measured() -> None:
    profile = load("H200")
    link = profile.links[HOST]
    assert (link.out, link.back) == (55.4e9, 55.5e9)
    assert (link.out_duplex, link.back_duplex) == (50.8e9, 50.8e9)
    assert link.latency_s == 7.5e-6
    assert profile.bandwidth == 4.3e12
    assert 680e12 <= profile.flops["bf16"] <= 790e12
    assert profile.sources[0].startswith("measured on an H200")


def test_numbers_are_possible(profile: Hardware) -> None:
    link = profile.links[HOST]
    assert 0 < profile.efficiency < 1
    assert 0 < profile.memory_efficiency < 1
    assert 0 < link.out_duplex <= link.out
    assert 0 < link.back_duplex <= link.back
    assert profile.flops["bf16"] >= profile.flops["tf32"] >= profile.flops["fp32"] > 0


def test_sources_are_named_and_assumptions_stated(profile: Hardware) -> None:
    text = "\n".join(profile.sources)
    assert "NVIDIA" in text
    assert "PCIe" in text
    assert "efficiency and memory_efficiency are assumed" in text
    same_rate = len(set(profile.flops.values())) == 1
    assert same_rate == (profile.name in WITHOUT_NARROW_FLOATS)
    assert same_rate == ("no bf16 or tf32 arithmetic" in text)


@pytest.mark.parametrize("spelling", ["Titan X Maxwell", "titan-x-maxwell", "TITANXMAXWELL"])
def test_spelling_is_free(spelling: str) -> None:
    assert load(spelling).name == "Titan X Maxwell"


def test_an_unknown_machine_is_told_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'GTX 480'.*A100.*Titan Xp.*V100"):
        load("GTX 480")


def test_roofline_takes_the_slower_of_arithmetic_and_memory() -> None:
    costs = Roofline(load("A100"), "bf16")
    assert (costs.hardware, costs.measured) == ("A100", False)
    # 312 TFLOP/s at 75% and 2,039 GB/s at 85%; a launch costs 4 us.
    assert costs.launch_s(launch(234e12, 0), 64) == pytest.approx(4e-6 + 1.0)
    assert costs.launch_s(launch(234e12, 2039e9 * 0.85 * 3), 64) == pytest.approx(4e-6 + 3.0)
    assert costs.launch_s(launch(234e12, 0), 16) == pytest.approx(4e-6 + 0.25)
    assert Roofline(load("A100"), "tf32").launch_s(launch(234e12, 0), 64) == pytest.approx(
        4e-6 + 2.0
    )
