"""Compiles Triton kernels for NVIDIA architectures on a machine that needs no GPU.

A stub driver turns every launch into a compilation, so that the library's own launch code runs, on
meta tensors. It cannot share a process with the interpreter:

    python -m bench.offline.compiler ARCH,... PART/PARTS DEPTH CASE_MODULE...

compiles that part of the kernels that the modules' CASES launch and prints the reports as JSON: for
Hopper variants of a kernel, for other architectures each launcher's kernels once. DEPTH is `all`,
by which every variant is assembled, or `few`: one of each kernel for Hopper.
"""

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.language.semantic import TritonSemantic
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from bench.offline.read_backs import early_read_backs
from bench.offline.register_operands import products_in_flight
from bench.offline.sass import disassembled, early_reads
from bench.offline.variants import (
    Allocated,
    Variant,
    compile_variant,
    merged,
    once_each,
    quickly_checked,
    replaced,
    variants_of,
)
from tvdnn.kernels.language import gluon
from tvdnn.runtime.kernel_set import kernel_set

ROOT: Final = Path(__file__).parents[2]
SHARED_NBYTES: Final = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
HOPPER: Final = 90
ASSEMBLING: Final = ("enable_fp_fusion", "ptx_options")  # what ptxas is told
NUM_SMS: Final = {80: 108, 86: 84, 89: 128, 90: 132, 100: 148, 120: 170}
Place = tuple[int, str, str]  # generation (of `every`, architecture), kernel and key of a variant
Made = tuple[Any, str]  # a kernel, or how far it came, and the assembler's log
LAUNCHERS: Final = {each.__code__: name for name, each in vars(kernel_set("triton")).items()}


@dataclass(frozen=True, slots=True)
class Case:
    """A launch on meta tensors."""

    name: str
    launch: Callable[[], None]
    wgmma: bool = False  # on Hopper its kernels must use warpgroup products


@dataclass(frozen=True, slots=True)
class Report:
    """Resources of one compiled kernel that a launcher launches."""

    case: str
    arch: int
    launcher: str
    kernel: str
    shared_nbytes: int
    num_wgmma: int
    needs_wgmma: bool
    early_read_backs: int
    products_in_flight: int
    # of kernels that were assembled
    registers: int | None = None
    spilled_nbytes: int = 0
    early_arrivals: int = 0
    early_reads: int = 0
    serialized: bool = False


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
    """A launcher's kernel and the assembler's log of it, empty where it came from the cache."""

    launcher: str
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
        kernels.append(Compiled(_launcher(), kernel, log.getvalue()))
        return kernel

    with _launching_by(run):
        yield kernels


@contextlib.contextmanager
def nothing_compiled() -> Iterator[None]:
    """Within it, launches do nothing."""
    with _launching_by(lambda *_, **__: None):
        yield


def _launching_by(run: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    return replaced(JITFunction, "run", run)


def _launcher() -> str:
    """The name of the library's launcher that was called to launch, "" where none was."""
    name, frame = "", sys._getframe(1)
    while frame is not None:
        name = LAUNCHERS.get(frame.f_code, name)
        frame = frame.f_back
    return name


def assembled_again(kernel: Any) -> str:
    """ptxas' log of a kernel that came from the cache: its registers, spills and products."""
    backend = make_backend(kernel.metadata.target)
    options = backend.parse_options({name: getattr(kernel.metadata, name) for name in ASSEMBLING})
    with contextlib.redirect_stdout(io.StringIO()) as log:
        backend.make_cubin(kernel.asm["ptx"], {}, options, kernel.metadata.target.arch)
    return log.getvalue()


def report(variant: Variant, made: Any, log: str, arch: int) -> Report:
    """Read a compiled kernel's PTX and assembler log, if it was assembled."""
    common = {"case": variant.case, "arch": arch, "launcher": variant.launcher}
    common |= {"kernel": variant.place, "needs_wgmma": variant.needs_wgmma}
    if isinstance(made, Allocated):
        reached = ("shared_nbytes", "num_wgmma", "early_read_backs", "products_in_flight")
        return Report(**common, **{name: getattr(made, name) for name in reached})
    ptx = made.asm["ptx"]
    log = log or assembled_again(made)
    used = re.search(r"Used (\d+) registers", log)
    return Report(
        **common,
        shared_nbytes=made.metadata.shared,
        num_wgmma=len(re.findall(r"wgmma\.mma_async", ptx)),
        early_read_backs=early_read_backs(made.asm["ttgir"]),
        products_in_flight=products_in_flight(made.asm["ttgir"]),
        registers=int(used[1]) if used else 0,
        spilled_nbytes=sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        early_arrivals=early_arrivals(ptx),
        early_reads=early_reads(disassembled(made.asm["cubin"])) if "wgmma" in ptx else 0,
        serialized="wgmma" in log and "serializ" in log,
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


def compile_cases(
    cases: Sequence[Case],
    arch: int,
    part: tuple[int, int],
    *,
    every: bool,
    made: dict[Place, Made],
) -> Iterator[Report]:
    """Compile a part of the kernels that the cases launch, `every` variant of it to the end.

    Else one of each kernel is assembled, for Hopper. `made` has what is compiled so far, by
    generation: Triton's passes treat the architectures of one alike.
    """
    driver.set_active(OfflineDriver(arch))
    gluon.available()  # may compile a kernel to see whether it can, which belongs to no case
    asked = _variants(cases, arch, part, every=every)
    few = once_each(asked, by_launcher=False) if arch == HOPPER else []
    ends = {(each.place, each.key) for each in (asked if every else few)}
    for variant in asked:
        place = (arch if every else arch // 10, variant.place, variant.key)
        if place not in made:
            with contextlib.redirect_stdout(io.StringIO()) as log:
                kernel = compile_variant(variant, assembles=place[1:] in ends)
            made[place] = kernel, log.getvalue()
        yield report(variant, *made[place], arch)


def _variants(
    cases: Sequence[Case], arch: int, part: tuple[int, int], *, every: bool
) -> list[Variant]:
    """Variants to compile: for Hopper `every` one or few, else each launcher's kernels once.

    A part of these is one of so many kernels, for Hopper, or launchers.
    """
    asked = [
        variant
        for case in cases
        for variant in variants_of(case.launch, _launcher, case.name, wgmma=case.wgmma)
    ]
    number, parts = part
    if arch != HOPPER:
        launchers = {*sorted({each.launcher for each in asked})[number::parts]}
        found = once_each(asked, by_launcher=True)
        return [each for each in found if each.launcher in launchers]
    found = merged(asked) if every else quickly_checked(merged(asked))
    counts = Counter(each.place for each in found)
    kernels = {name for name, _ in counts.most_common()[number::parts]}
    return [each for each in found if each.place in kernels]


def without_interpreter() -> dict[str, str]:
    """The environment of a process that compiles."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def reports_of(
    modules: Sequence[str],
    archs: Sequence[int],
    part: tuple[int, int] = (0, 1),
    *,
    every: bool = False,
) -> list[Report]:
    """The reports of a part of all kernels, compiled in one process that has no interpreter."""
    number, parts = part
    chosen = [",".join(map(str, archs)), f"{number}/{parts}", "all" if every else "few", *modules]
    command = [sys.executable, "-m", "bench.offline.compiler", *chosen]
    done = subprocess.run(
        command, cwd=ROOT, env=without_interpreter(), capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return [Report(**fields) for fields in json.loads(done.stdout)]


def cases_of(name: str) -> list[Case]:
    """The cases of a module of this folder."""
    cases: list[Case] = importlib.import_module(name).CASES
    assert cases, f"{name} launches nothing"
    return cases


def main(archs: str, part: str, depth: str, *modules: str) -> None:
    """Print the reports of a part of the modules' kernels as JSON."""
    knobs.nvidia.dump_ptxas_log = True  # each kernel is assembled once, where it is compiled
    knobs.compilation.disable_line_info = True  # costs a twentieth, and changes no instruction
    number, parts = map(int, part.split("/"))
    every, made = depth == "all", dict[Place, Made]()
    with contextlib.redirect_stdout(sys.stderr):  # of a kernel outside every case, on empty caches
        cases = [case for name in modules for case in cases_of(name)]
        # Without debug the outcome of tests for overflow is dropped. Their operations, and files
        # that `compile_variant` spares, take a tenth of the tests' CPU time (2026-11-26).
        with replaced(TritonSemantic, "binary_op_sanitize_overflow_impl", lambda *_: None):
            found = [
                asdict(each)
                for arch in map(int, archs.split(","))
                for each in compile_cases(cases, arch, (number, parts), every=every, made=made)
            ]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
