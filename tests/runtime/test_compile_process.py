"""Kernels compile in other processes: all are in the cache then, and threads make up for faults."""

from pathlib import Path

import pytest

from tests.support.scripts import run_compiler

BY_PROCESSES = """
import torch
from triton import knobs
from triton.runtime import _async_compile, cache, driver
from bench.offline.compiler import OfflineDriver
from tests.support.jit_kernels import calls, calls_too, fails, stores
from tvdnn.kernels.language import gluon
from tvdnn.runtime import kernel_sources, precompile
from tvdnn.runtime.precompile import compiling
from tvdnn.workers.process import _running

kernel_sources._PACKAGES += ("tests.support.",)
cache.triton_key = lambda: "known here alone"
driver.set_active(OfflineDriver(90))
hits = {}
def note(*, src, cache_hit, **_):
    hits.setdefault(src.name, []).append(cache_hit)
knobs.compilation.listener = note
x = torch.empty(1 << 16, device="meta")
box = gluon.swizzled(torch.empty(64, 64, dtype=torch.bfloat16, device="meta"), [64, 64])

def launches():
    for number in range(precompile.FEW):
        stores[(1,)](x, number, SHIFT=number, num_warps=4)
    gluon._trial_kernel[(1,)](box, box, num_warps=4)
    calls[(1,)](x)
    calls_too[(1,)](x)

reported = []
with compiling(torch.device("cpu"), lambda *each: reported.append(each), cores=2):
    launches()
    launches()
    fails[(1,)](x)
    others = _async_compile.active_mode.get()._others
    assert others._worker.result() in _running, "no process starts while kernels are collected"
assert not _running, "a process is left"
once = {"_trial_kernel": [True], "calls": [True], "calls_too": [True]}
assert hits == {"stores": [True] * precompile.FEW, **once}, hits
fractions = [fraction for stage, fraction in reported if stage == "compiling"]
assert fractions == sorted(fractions) and fractions[0] == 0.0 and fractions[-1] == 1.0, reported

precompile.CompileProcess = None  # where everything is cached, no process starts
for kernel in (stores, gluon._trial_kernel, calls, calls_too):
    kernel.device_caches.clear()
with compiling(torch.device("cpu"), cores=2):
    launches()
twice = {name: [True] * 2 for name in once}
assert hits == {"stores": [True] * 2 * precompile.FEW, **twice}, hits
"""
SOON = """
import torch
from triton import knobs
from triton.runtime import driver
from bench.offline.compiler import OfflineDriver
from tests.support.jit_kernels import stores
from tvdnn.runtime import compile_process, kernel_sources, precompile
from tvdnn.runtime.compile_process import compiling_soon, early_process
from tvdnn.runtime.kernel_set import jit_functions
from tvdnn.runtime.precompile import compiling
from tvdnn.workers.process import _running

def started(device, kernels, cores):
    compile_process.usable_cores = lambda: cores
    with compiling_soon(torch.device(device), kernels):
        return early_process() is not None

MANY = compile_process.MANY_CORES
assert started("cuda", None, MANY) and started("cuda", "triton", MANY)
assert not started("cuda", "torch", MANY) and not started("cpu", "triton", MANY)
assert not started("cuda", None, MANY - 1)

kernel_sources._PACKAGES += ("tests.support.",)
compile_process.usable_cores = lambda: MANY
driver.set_active(OfflineDriver(90))
hits = []
knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
x = torch.empty(1 << 16, device="meta")
precompile.CompileProcess = None  # no other process starts
with compiling_soon(torch.device("cuda"), None):
    for first in (0, precompile.FEW):
        with compiling(torch.device("cpu"), cores=2):
            for number in range(first, first + precompile.FEW):
                stores[(1,)](x, number, SHIFT=number, num_warps=4)
        assert early_process()._worker.result() in _running, "the process ends too early"
assert hits == [True] * 2 * precompile.FEW, hits
assert not _running, "a process is left"
assert set(compile_process.SLOWEST) <= {each.fn.__name__ for each in jit_functions()}
"""
STORES = """
import sys
from contextlib import suppress
import torch
from triton import knobs
from triton.runtime import _async_compile, driver
from bench.offline.compiler import OfflineDriver
from tests.support.jit_kernels import stores
from tvdnn.runtime import compile_process, kernel_sources, precompile
from tvdnn.runtime.precompile import compiling
from tvdnn.workers.process import _running

kernel_sources._PACKAGES += ("tests.support.",)
driver.set_active(OfflineDriver(90))
compiled = []
knobs.compilation.listener = lambda *, src, **_: compiled.append(src.name)
x = torch.empty(1 << 16, device="meta")

def launches():
    for number in range(precompile.FEW):
        stores[(1,)](x, number, SHIFT=number, num_warps=4)
"""
BROKEN = """
def refuse(*_):
    raise ValueError("no kernel compiles here")

setattr(compile_process, sys.argv[1], refuse)
with compiling(torch.device("cpu"), cores=2):
    launches()
assert compiled == ["stores"] * precompile.FEW, compiled
"""
STOPPED = """
def interrupted(stage, fraction):
    if _running:
        raise KeyboardInterrupt

with suppress(KeyboardInterrupt):
    with compiling(torch.device("cpu"), interrupted, cores=2):
        launches()
    raise SystemExit("the interrupt was lost")
assert not _running and not compiled, compiled
with compiling(torch.device("cpu"), cores=2):
    launches()
    _async_compile.active_mode.get()._others._worker.result().end()
assert compiled == ["stores"] * precompile.FEW, compiled
"""


@pytest.mark.slow
def test_other_processes_leave_every_kernel_in_the_cache(tmp_path: Path) -> None:
    """Kernels of Triton and of Gluon, with descriptors. One that fails fails here again."""
    run_compiler(BY_PROCESSES, TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.slow
def test_a_process_that_starts_early_compiles_all_and_ends(tmp_path: Path) -> None:
    """It serves every `compiling` within. Few cores, a CPU or references start none."""
    run_compiler(SOON, TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.slow
def test_threads_compile_where_processes_are_stopped(tmp_path: Path) -> None:
    """An interrupt leaves no process. Where a process was killed, threads compile its kernels."""
    run_compiler(STORES + STOPPED, TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["import_kernels", "compile_all"])
def test_threads_compile_where_processes_fail(part: str, tmp_path: Path) -> None:
    run_compiler(STORES + BROKEN, part, TRITON_CACHE_DIR=str(tmp_path))
