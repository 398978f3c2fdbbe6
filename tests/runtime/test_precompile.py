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
LISTED = """
import torch
from triton.runtime import driver
from bench.offline.compiler import OfflineDriver
from tests.support.jit_kernels import fails, stores
from tvdnn.runtime import precompile
from tvdnn.runtime.precompile import compiling

driver.set_active(OfflineDriver(90))
x, asked = torch.empty(1 << 16, device="meta"), []
submit = precompile._Compiling.submit
def noted(self, key, *rest):
    asked.append(key)
    return submit(self, key, *rest)
precompile._Compiling.submit = noted

def kernels(function):
    return [each for caches in function.device_caches.values() for each in caches[0].values()]

with compiling(torch.device("cpu"), cores=1):
    for _ in range(3):
        stores[(1,)](x, 1, SHIFT=1)
        stores[(1,)](x, 1, SHIFT=1, num_warps=4)  # the same kernel by another key
        fails[(1,)](x)
assert len(asked) == 3 and len(set(asked)) == 2, asked
assert len(kernels(stores)) == 2 and not kernels(fails)
assert not any(isinstance(each, precompile._Deferred) for each in kernels(stores))
with compiling(torch.device("cpu"), cores=1):
    fails[(1,)](x)
assert len(asked) == 4, "a kernel that failed is not compiled beside others again"
"""


def test_launches_within_do_not_run_and_launches_behind_do(tmp_path: Path) -> None:
    """With Triton's compiler, for a GPU that is not there, apart from the interpreter.

    Behind, kernels are ready, or those that failed or were interrupted are compiled anew.
    """
    run_compiler(ON_ITS_OWN + LAUNCHED_AGAIN, TRITON_CACHE_DIR=str(tmp_path))


def test_a_kernel_is_listed_once_for_each_kind_of_launch(tmp_path: Path) -> None:
    """No placeholder stays in Triton's cache."""
    run_compiler(LISTED, TRITON_CACHE_DIR=str(tmp_path))


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
