"""Every launcher compiles for every supported architecture, within its limits, without a GPU."""

from pathlib import Path

import pytest

from tests.offline import SHARED_NBYTES, reports_of

STEMS = sorted(path.stem for path in Path(__file__).parent.glob("cases/[!_]*.py"))


@pytest.mark.parametrize("stem", STEMS)
def test_compiles_within_limits(stem: str) -> None:
    reports = reports_of(f"tests.kernels.cases.{stem}")
    assert reports, f"cases/{stem}.py launches nothing"
    for report in reports:
        assert report.shared_nbytes <= SHARED_NBYTES[report.arch], report
        if report.arch == 90:
            assert report.spilled_nbytes == 0, report
            assert not report.serialized, report
        if report.arch == 90 and report.needs_wgmma:
            assert report.num_wgmma > 0, report
