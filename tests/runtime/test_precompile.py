"""Kernels compile side by side: none runs before, and a failed one stays as it was."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime import _async_compile

from tests.support.networks import NetworkMaker
from tests.support.scripts import run_compiler
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.schedule import Lane
from tvdnn.planner.make import make_schedule
from tvdnn.runtime.precompile import compile_launches, compiling
from tvdnn.units import KIB

CPU = torch.device("cpu")
ON_ITS_OWN = """
import torch
from triton import knobs
from triton.runtime import driver
from bench.offline.compiler import OfflineDriver, compiled_kernels
from tvdnn.kernels.pointwise.activation import relu
from tvdnn.runtime.precompile import compiling

driver.set_active(OfflineDriver(90))
cached = []
knobs.compilation.listener = lambda *, cache_hit, **_: cached.append(cache_hit)
x = torch.empty(1 << 16, device="meta")
with compiling(torch.device("cpu")):
    for _ in range(2):
        relu(x, x)
    assert not cached, "a launch compiled"
assert cached == [False], cached
with compiled_kernels() as kernels:
    relu(x, x)
assert cached == [False], cached
assert all(each.kernel.metadata.target.arch == 90 for each in kernels), kernels
"""
LAUNCHED_AGAIN = """
import torch, triton
import triton.language as tl
from contextlib import suppress
from triton import knobs
from triton.runtime import driver
from triton.compiler.errors import CompilationError
from bench.offline.compiler import OfflineDriver
from tests.support.jit_kernels import fails, nothing
from tvdnn.runtime.precompile import compiling

driver.set_active(OfflineDriver(90))
compiled = []
knobs.compilation.listener = lambda *, src, **_: compiled.append(src.name)
x = torch.empty(1 << 16, device="meta")
with compiling(torch.device("cpu")):
    fails[(1,)](x)
try:
    fails[(1,)](x)
    raise SystemExit("a kernel that does not compile was launched in silence")
except CompilationError:
    pass
with suppress(KeyboardInterrupt), compiling(torch.device("cpu")):
    nothing[(1,)](x)
    raise KeyboardInterrupt
assert not compiled, compiled
with suppress(AttributeError):  # of the driver: there is no GPU to load the kernel on
    nothing[(1,)](x)
assert compiled == ["nothing"], compiled
"""
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
STOPPED = """
from contextlib import suppress
import torch
from triton import knobs
from triton.runtime import _async_compile, driver
from bench.offline.compiler import OfflineDriver
from tests.support.jit_kernels import stores
from tvdnn.runtime import kernel_sources, precompile
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

def interrupted(stage, fraction):
    if _running:
        raise KeyboardInterrupt

with suppress(KeyboardInterrupt):
    with compiling(torch.device("cpu"), interrupted, cores=2):
        launches()
    raise SystemExit("the interrupt was lost")
assert not _running and not compiled, compiled
stores.device_caches.clear()
with compiling(torch.device("cpu"), cores=2):
    launches()
    _async_compile.active_mode.get()._others._worker.result().end()
assert compiled == ["stores"] * precompile.FEW, compiled
"""


def test_launches_within_do_not_run_and_launches_behind_do(tmp_path: Path) -> None:
    """With Triton's compiler, for a GPU that is not there, apart from the interpreter.

    Behind, kernels are ready, or those that failed or were interrupted are compiled anew.
    """
    run_compiler(ON_ITS_OWN + LAUNCHED_AGAIN, TRITON_CACHE_DIR=str(tmp_path))


def test_other_processes_leave_every_kernel_in_the_cache(tmp_path: Path) -> None:
    """Kernels of Triton and of Gluon, with descriptors. One that fails fails here again."""
    run_compiler(BY_PROCESSES, TRITON_CACHE_DIR=str(tmp_path))


def test_a_process_that_starts_early_compiles_all_and_ends(tmp_path: Path) -> None:
    """It serves every `compiling` within. Few cores, a CPU or references start none."""
    run_compiler(SOON, TRITON_CACHE_DIR=str(tmp_path))


def test_threads_compile_where_processes_are_stopped(tmp_path: Path) -> None:
    """An interrupt leaves no process. Where a process was killed, threads compile its kernels."""
    run_compiler(STOPPED, TRITON_CACHE_DIR=str(tmp_path))


def test_a_kernel_that_many_launch_is_compiled_once() -> None:
    compiled, ready = list[str](), list[str]()
    with compiling(CPU):
        for name in "abab":
            ask(name, lambda name=name: compiled.append(name) or name, ready.append)
        assert not compiled
    assert sorted(compiled) == sorted(ready) == ["a", "b"]


def test_what_fails_to_compile_is_left_to_who_launches_it() -> None:
    ready = list[str]()
    with compiling(CPU):
        ask("fails", lambda: 1 // 0, ready.append)
        ask("compiles", lambda: "kernel", ready.append)
    assert ready == ["kernel"]


def test_nothing_compiles_behind_an_interrupt_and_launches_run_again() -> None:
    compiled = list[str]()

    def interrupted() -> None:
        with compiling(CPU):
            ask("a", lambda: compiled.append("a"), lambda _: None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not compiled
    assert _async_compile.active_mode.get() is None


def test_kernels_are_loaded_on_the_present_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    present, loaded = threading.local(), list[int]()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: setattr(present, "index", index))

    class Kernel:
        def _init_handles(self) -> None:
            loaded.append(present.index)

    with compiling(torch.device("cuda")):
        ask("a", Kernel, lambda _: None)
        assert not loaded
    assert loaded == [3]


def test_launches_of_a_schedule_are_tried_but_no_copies_and_no_eager_ops() -> None:
    maker = NetworkMaker((4, 16, 16, 4))
    for _ in range(3):
        maker.conv(8)
        maker.relu()
    maker.flatten()
    maker.linear(4)
    graph = expand(maker.build(), Settings("fp32", 16 * KIB, optimizer=SGD()))
    first = graph.passes[0].op
    graph = replace(graph, ops={**graph.ops, first: replace(graph.ops[first], kind="opaque")})
    schedule = make_schedule(graph, Roofline(load("H200"), "fp32"), policy="vdnn-all")
    called, beside = list[int](), list[int]()
    steps = range(len(schedule.steps))
    calls = [partial(called.append, number) for number in steps]
    compile_launches(schedule, calls, [partial(beside.append, 1)], CPU)
    assert beside == [1]
    lanes = {schedule.steps[number].lane for number in steps}
    assert lanes == {Lane.COMPUTE, Lane.OFFLOAD, Lane.PREFETCH}
    tried = [schedule.steps[number] for number in called]
    assert {step.lane for step in tried} == {Lane.COMPUTE}
    assert {graph.passes[step.pass_index].op for step in tried} == graph.ops.keys() - {first}


def ask(name: str, compile_: Callable[[], Any], finalize: Callable[[Any], None]) -> None:
    """Ask for a kernel that is not compiled, and launch it."""
    mode = _async_compile.active_mode.get()
    assert mode is not None
    kernel = mode.submit(name, compile_, finalize)
    assert not hasattr(kernel, "result")  # for which a launch would wait
    metadata = kernel.launch_metadata((1,), 0)
    kernel.run(1, 1, 1, 0, kernel.function, kernel.packed_metadata, metadata, None, None)
