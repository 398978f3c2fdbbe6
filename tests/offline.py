"""Compiles Triton kernels for NVIDIA architectures on a machine that needs no GPU.

A stub driver turns every launch into a compilation, so that the library's own launch code runs, on
meta tensors. It cannot share a process with the interpreter:

    python -m tests.offline CASE_MODULE...

runs every `Case` in the modules' CASES for its architectures and prints the reports as JSON.
"""

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tvdnn.kernels.language import gluon

ROOT: Final = Path(__file__).parents[1]
SHARED_NBYTES: Final = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
ALL: Final = tuple(SHARED_NBYTES)
NUM_SMS: Final = {80: 108, 86: 84, 89: 128, 90: 132, 100: 148, 120: 170}


@dataclass(frozen=True, slots=True)
class Case:
    """A launch on meta tensors; `wgmma`: on Hopper its kernels must use warpgroup products.

    `archs` are those it is compiled for: by default Hopper, and what has the least shared memory.
    """

    name: str
    launch: Callable[[], None]
    wgmma: bool = False
    archs: tuple[int, ...] = (86, 90)


@dataclass(frozen=True, slots=True)
class Report:
    """What the compiler made of one kernel."""

    case: str
    arch: int
    kernel: str
    registers: int
    spilled_nbytes: int
    shared_nbytes: int
    num_wgmma: int
    num_mma: int
    num_tma: int
    early_arrivals: int
    serialized: bool
    needs_wgmma: bool


class OfflineUtils:
    """Stands for the driver's queries."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": SHARED_NBYTES[self.arch],
            "multiprocessor_count": NUM_SMS[self.arch],
        }


class OfflineDriver:
    """Stands for a CUDA driver; each architecture counts as its own device."""

    def __init__(self, arch: int) -> None:
        self.target = GPUTarget("cuda", arch, 32)
        self.utils = OfflineUtils(arch)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return int(self.target.arch)

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


class Compiled(NamedTuple):
    """A kernel and the assembler's log of it, empty where the kernel came from the cache."""

    kernel: Any
    log: str


@contextlib.contextmanager
def compiled_kernels() -> Iterator[list[Compiled]]:
    """Within it, launches only compile; yields the list that collects what they made."""
    kernels: list[Compiled] = []
    stock = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as log:
            kernel = stock(self, *args, grid=grid, warmup=True, **kwargs)
        kernels.append(Compiled(kernel, log.getvalue()))
        return kernel

    JITFunction.run = run
    try:
        yield kernels
    finally:
        JITFunction.run = stock


def assemble(ptx: str, arch: int) -> str:
    """What ptxas has to say of a kernel's registers, spills and warpgroup products."""
    target = re.search(r"\.target (sm_\w+)", ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        output = Path(folder, "kernel.cubin")
        command = [
            get_ptxas(arch).path,
            "-v",
            f"--gpu-name={target[1]}",
            str(source),
            "-o",
            str(output),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def report(case: Case, compiled: Compiled, arch: int) -> Report:
    """Read a compiled kernel's PTX and assembler log."""
    kernel = compiled.kernel
    ptx = kernel.asm["ptx"]
    log = compiled.log or assemble(ptx, arch)
    used = re.search(r"Used (\d+) registers", log)
    return Report(
        case=case.name,
        arch=arch,
        kernel=kernel.metadata.name,
        registers=int(used[1]) if used else 0,
        spilled_nbytes=sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        shared_nbytes=kernel.metadata.shared,
        num_wgmma=len(re.findall(r"wgmma\.mma_async", ptx)),
        num_mma=len(re.findall(r"\bmma\.sync", ptx)),
        num_tma=len(re.findall(r"cp\.async\.bulk\.tensor", ptx)),
        early_arrivals=early_arrivals(ptx),
        serialized="wgmma" in log and "serializ" in log,
        needs_wgmma=case.wgmma,
    )


def early_arrivals(ptx: str) -> int:
    """How many arrivals at a barrier may come before other warps of the group end their waits.

    One thread arrives for its group. Without a `bar.sync` since the last wait another warp may
    still wait for a phase that the ring then passes twice, and hangs; triton 3.6 promises none.
    """
    early, synchronized = 0, False
    for line in ptx.splitlines():
        if "bar.sync" in line:
            synchronized = True
        elif "mbarrier.try_wait" in line:
            synchronized = False
        elif "mbarrier.arrive." in line and "expect_tx" not in line:
            early += not synchronized
    return early


def compile_case(case: Case, arch: int) -> list[Report]:
    """Compile every kernel that the case launches for one architecture."""
    driver.set_active(OfflineDriver(arch))
    gluon.available()  # compiles a kernel to see whether it can, which belongs to no case
    with compiled_kernels() as kernels:
        case.launch()
    return [report(case, compiled, arch) for compiled in kernels]


def without_interpreter() -> dict[str, str]:
    """The environment of a process that compiles."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def reports_of(modules: Sequence[str]) -> dict[str, list[Report]]:
    """The reports of each module of cases, all compiled in one process that has no interpreter."""
    command = [sys.executable, "-m", "tests.offline", *modules]
    done = subprocess.run(
        command, cwd=ROOT, env=without_interpreter(), capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    return {module: [Report(**fields) for fields in reports] for module, reports in found.items()}


def compile_module(name: str) -> list[Report]:
    """Compile every case of a module for its architectures."""
    cases: list[Case] = importlib.import_module(name).CASES
    return [each for case in cases for arch in case.archs for each in compile_case(case, arch)]


def main(*modules: str) -> None:
    """Print the reports of each module of cases as JSON."""
    knobs.nvidia.dump_ptxas_log = True  # each kernel is assembled once, where it is compiled
    with contextlib.redirect_stdout(sys.stderr):  # of a kernel outside every case, on empty caches
        found = {name: [asdict(each) for each in compile_module(name)] for name in modules}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
