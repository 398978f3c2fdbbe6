"""Every launcher compiles for every supported architecture, within its limits, without a GPU.

Variants go as far as their shared memory. One of each kernel is assembled, for Hopper.
`python -m bench.compiled` assembles all, candidates of tuning among them.
"""

import json
import subprocess
import sys

from bench.compiled import CASES
from bench.offline.compiler import (
    HOPPER,
    LAUNCHERS,
    ROOT,
    SHARED_NBYTES,
    Report,
    reports_of,
    without_interpreter,
)
from bench.offline.limits import faults

OTHERS = (86, 80, 89, 100, 120)
MASKED_BY_BITS = """
import contextlib, dataclasses, json, sys
from triton import knobs
from bench.offline.cases import CASES
from bench.offline.compiler import HOPPER, compile_cases

knobs.nvidia.dump_ptxas_log = True
cases = [case for case in CASES if "bits=True" in case.name]
with contextlib.redirect_stdout(sys.stderr):
    found = list(compile_cases(cases, HOPPER, (0, 1), every=True, made={}))
json.dump([dataclasses.asdict(each) for each in found], sys.stdout)
"""


def test_every_launcher_compiles_within_the_limits_of_others() -> None:
    reports = reports_of([CASES], OTHERS)
    check_all(reports)
    for arch in OTHERS:
        assert {each.launcher for each in reports if each.arch == arch} == {*LAUNCHERS.values()}


def test_variants_compile_within_the_limits_of_hopper() -> None:
    """Launches of training steps compile too. One variant of each kernel is assembled."""
    reports = reports_of([CASES, "bench.offline.steps"], [HOPPER])
    check_all(reports)
    assembled = {each.kernel for each in reports if each.registers is not None}
    assert assembled == {each.kernel for each in reports}


def test_masks_by_bits_come_behind_the_products_that_they_mask() -> None:
    """Where a `where` masked the sums, ptxas of triton 3.6 rounded them ahead of their products."""
    command = [sys.executable, "-c", MASKED_BY_BITS]
    how = {"cwd": ROOT, "env": without_interpreter(), "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **how)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    reports = [Report(**fields) for fields in json.loads(done.stdout)]
    assert all(each.registers is not None for each in reports)
    assert {"conv.warp_specialized.conv_specialized_kernel"} < {each.kernel for each in reports}
    check_all(reports)


def test_every_architecture_is_compiled_for() -> None:
    assert {HOPPER, *OTHERS} == {*SHARED_NBYTES}


def check_all(reports: list[Report]) -> None:
    assert reports
    assert [(each, fault) for each in reports for fault in faults(each)] == []
