"""Every launcher compiles for every supported architecture, within its limits, without a GPU."""

from pathlib import Path

import pytest

from tests.offline import SHARED_NBYTES, Report, reports_of
from tvdnn.kernels.language import gluon

STEMS = sorted(path.stem for path in Path(__file__).parent.glob("cases/[!_]*.py"))
PROCESSES = 5  # each imports torch and Triton
TOGETHER = [STEMS[index::PROCESSES] for index in range(PROCESSES)]

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


@pytest.mark.parametrize("stems", TOGETHER, ids="+".join)
def test_compiles_within_limits(stems: list[str]) -> None:
    found = reports_of([f"tests.kernels.cases.{stem}" for stem in stems])
    for module, reports in found.items():
        assert reports, f"{module} launches nothing"
        for report in reports:
            check(report)


def check(report: Report) -> None:
    assert report.shared_nbytes <= SHARED_NBYTES[report.arch], report
    if report.arch == 90:
        version = gluon.version()
        assert report.spilled_nbytes <= SPILLED.get(version, {}).get(report.kernel, 0), report
        serialized = report.kernel in SERIALIZED.get(version, ())
        assert serialized or not report.serialized, report
        assert report.early_arrivals == 0, report
        if report.needs_wgmma:
            assert report.num_wgmma > 0, report
