"""Every launcher compiles for every supported architecture, within its limits, without a GPU.

Variants go as far as their shared memory. One of each kernel is assembled, for Hopper.
`python -m bench.compiled` assembles all, candidates of tuning among them.
"""

import pytest

from bench.compiled import CASES
from bench.offline.compiler import HOPPER, LAUNCHERS, SHARED_NBYTES, Report, reports_of
from bench.offline.limits import faults

OTHERS = (86, 80, 89, 100, 120)
PARTS = 6  # of the kernels
MASKING = 5  # kernels of products whose masks are bits

of_each_part = pytest.mark.parametrize("part", range(PARTS))


@of_each_part
def test_every_launcher_compiles_within_the_limits_of_others(part: int) -> None:
    reports = reports_of([CASES], OTHERS, (part, PARTS))
    check_all(reports)
    for arch in OTHERS:
        found = {each.launcher for each in reports if each.arch == arch}
        assert found == {*sorted(LAUNCHERS.values())[part::PARTS]}


@of_each_part
def test_variants_compile_within_the_limits_of_hopper(part: int) -> None:
    """Launches of training steps compile too. One variant of each kernel is assembled."""
    reports = reports_of([CASES, "bench.offline.steps"], [HOPPER], (part, PARTS))
    check_all(reports)
    assembled = {each.kernel for each in reports if each.registers is not None}
    assert assembled == {each.kernel for each in reports}


@pytest.mark.parametrize("kernel", range(MASKING))
def test_masks_by_bits_come_behind_the_products_that_they_mask(kernel: int) -> None:
    """Where a `where` masked the sums, ptxas of triton 3.6 rounded them ahead of their products."""
    part = (kernel, MASKING)
    reports = reports_of(["bench.offline.masked_by_bits"], [HOPPER], part, every=True)
    kernels = {each.kernel for each in reports}
    assert len(kernels) == 1
    assert (kernel == 0) == (kernels == {"conv.warp_specialized.conv_specialized_kernel"})
    assert all(each.registers is not None for each in reports)
    check_all(reports)


def test_every_architecture_is_compiled_for() -> None:
    assert {HOPPER, *OTHERS} == {*SHARED_NBYTES}


def check_all(reports: list[Report]) -> None:
    assert reports
    assert [(each, fault) for each in reports for fault in faults(each)] == []
