"""Every launcher compiles for every supported architecture, within its limits, without a GPU.

Every variant goes as far as its shared memory, and few of each kernel are assembled (variants.py).
`python -m bench.compiled` assembles all, candidates of tuning among them.
"""

from pathlib import Path

import pytest

from tests.support.limits import faults
from tests.support.offline import HOPPER, LAUNCHERS, SHARED_NBYTES, Report, reports_of

CASE_FILES = sorted(Path(__file__).parent.glob("cases/[!_]*.py"))
CASES = {path.stem: f"tests.kernels.cases.{path.stem}" for path in CASE_FILES}
for stem in ("candidates", "ranges"):  # differ from others in tiles alone, and in nothing new
    CASES.pop(stem)
VARIANTS = [CASES.pop(stem) for stem in ("ones", "steps")]  # of launches that others make
HOPPER_PARTS = 2
OTHERS = (86, 80, 89, 100, 120)


def test_every_launcher_compiles_within_the_limits_of_others() -> None:
    """A kernel is assembled for the first that has its IR: instructions differ by generation."""
    reports = reports_of([*CASES.values()], OTHERS)
    check_all(reports)
    for arch in OTHERS:
        assert {each.launcher for each in reports if each.arch == arch} == {*LAUNCHERS.values()}


@pytest.mark.parametrize("part", range(HOPPER_PARTS))
def test_all_variants_compile_within_the_limits_of_hopper(part: int) -> None:
    reports = reports_of([*CASES.values(), *VARIANTS], [HOPPER], (part, HOPPER_PARTS))
    check_all(reports)


def test_every_architecture_is_compiled_for() -> None:
    assert {HOPPER, *OTHERS} == {*SHARED_NBYTES}


def check_all(reports: list[Report]) -> None:
    """No fault, and of each kernel at least one variant was assembled."""
    assert reports
    assert [(each, fault) for each in reports for fault in faults(each)] == []
    assembled = {each.kernel for each in reports if each.registers is not None}
    assert assembled == {each.kernel for each in reports}
