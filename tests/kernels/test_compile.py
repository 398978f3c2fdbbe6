"""Every launcher compiles for every supported architecture, within its limits, without a GPU."""

from itertools import chain
from pathlib import Path

import pytest

from tests.offline import HOPPER, LAUNCHERS, SHARED_NBYTES, Report, reports_of
from tvdnn.kernels.language import gluon

CASE_FILES = sorted(Path(__file__).parent.glob("cases/[!_]*.py"))
CASES = {path.stem: f"tests.kernels.cases.{path.stem}" for path in CASE_FILES}
STEPS = CASES.pop("steps")  # makes whole networks
VARIANTS = {CASES.pop(stem) for stem in ("candidates", "ones")}  # of launches that others make
HOPPER_PARTS = 5
OTHERS = ((80, 86, 89), (100, 120))  # architectures of one process each

# Bytes of registers that a version of Triton spills on Hopper where 3.6, whose times the tiles were
# chosen by, spills none; and kernels whose products 3.9 leaves to ptxas to serialize.
SPILLED: dict[tuple[int, int], dict[str, int]] = {
    (3, 7): {"conv_box_kernel": 304, "conv_kernel": 112},
    (3, 9): {
        "_broadcast_sums_kernel": 28,
        "_reduce_grad_kernel": 12,
        "conv_box_kernel": 564,
        "conv_kernel": 184,
        "conv_specialized_kernel": 168,
        "_rows_kernel": 8,
        "_transfer_kernel": 44,
        "grad_weight_turned_kernel": 176,
        "_product_kernel": 28,
    },
}
SERIALIZED = {(3, 9): {"grad_weight_turned_kernel"}}


@pytest.mark.parametrize("archs", OTHERS, ids=lambda archs: "-".join(map(str, archs)))
def test_every_launcher_compiles_within_the_limits_of_others(archs: tuple[int, ...]) -> None:
    reports = reports_of([*CASES.values()], archs)
    check_all(reports)
    for arch in archs:
        assert {each.launcher for each in reports if each.arch == arch} == {*LAUNCHERS.values()}


@pytest.mark.parametrize("part", range(HOPPER_PARTS))
def test_all_variants_compile_within_the_limits_of_hopper(part: int) -> None:
    check_all(reports_of([*CASES.values(), *sorted(VARIANTS)], [HOPPER], (part, HOPPER_PARTS)))


def test_training_steps_compile_within_the_limits_of_hopper() -> None:
    check_all(reports_of([STEPS], [HOPPER]))


def test_every_architecture_is_compiled_for() -> None:
    assert {HOPPER, *chain.from_iterable(OTHERS)} == {*SHARED_NBYTES}


def check_all(reports: list[Report]) -> None:
    assert reports
    for each in reports:
        check(each)


def check(report: Report) -> None:
    assert report.shared_nbytes <= SHARED_NBYTES[report.arch], report
    if report.arch == HOPPER:
        version = gluon.version()
        assert report.spilled_nbytes <= SPILLED.get(version, {}).get(report.kernel, 0), report
        serialized = report.kernel in SERIALIZED.get(version, ())
        assert serialized or not report.serialized, report
        assert report.early_arrivals == 0, report
        if report.needs_wgmma:
            assert report.num_wgmma > 0, report
