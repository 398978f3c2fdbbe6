"""Every launcher compiles for every supported architecture, within its limits, without a GPU."""

from pathlib import Path

import pytest

from tests.offline import SHARED_NBYTES, Report, reports_of

STEMS = sorted(path.stem for path in Path(__file__).parent.glob("cases/[!_]*.py"))
PROCESSES = 5  # each imports torch and Triton
TOGETHER = [STEMS[index::PROCESSES] for index in range(PROCESSES)]


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
        assert report.spilled_nbytes == 0, report
        assert not report.serialized, report
        assert report.early_arrivals == 0, report
        if report.needs_wgmma:
            assert report.num_wgmma > 0, report
