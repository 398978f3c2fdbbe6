"""Parallel compilation of kernels before their first launch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

import torch
from triton import AsyncCompileMode, JITFunction
from triton.runtime import _async_compile

from ..errors import WorkerError
from ..planner.ir.schedule import Lane, Schedule
from ..workers.cores import usable_cores
from .compile_process import MOST_PROCESSES, CompileProcess, early_process
from .kernel_sources import KernelSource, can_pack, closure_of, source_of
from .triton_launchers import keep_launchers_apart

keep_launchers_apart()
THREADS: Final = 12
# Threads compile fewer kernels. Another process first imports Triton and all kernels, in 0.5 s of
# CPU time. A kernel of ResNet-50 takes 0.1 to 1.8 s (Triton 3.9, 2026-11-27).
FEW: Final = 8
# Seconds between two looks at how many kernels other processes have compiled.
LOOK_S: Final = 0.2
STAGE: Final = "compiling"
WITH_OPTIMIZERS: Final = "torch._dynamo"
Finalize = Callable[[Any], None]  # receives a compiled kernel
Entry = tuple[dict[Any, Any], Any]  # Triton's cache of the variants of a function, and a key of it
_NOT_RUN: Final = SimpleNamespace(
    function=None,
    packed_metadata=None,
    launch_metadata=lambda *_: None,
    run=lambda *_: None,
)


@contextmanager
def compiling(
    device: torch.device,
    progress: Callable[[str, float], None] | None = None,
    *,
    cores: int | None = None,
) -> Iterator[None]:
    """Collect the kernels that launches inside the context ask for, and compile them on exit.

    Launches of Triton's kernels do nothing inside. Torch's own kernels run inside the context on
    whatever the skipped launches left. Compiled kernels are also loaded on the present GPU. A
    kernel that fails to compile fails again at its launch. On more than one core, many kernels are
    compiled by as many processes as there are `cores`, those of this process where none are given.
    Compiled one after another, the 87 kernels of ResNet-50 in bf16 take 57 s of CPU time.
    """
    on_gpu = device.type == "cuda"
    begin = partial(torch.cuda.set_device, torch.cuda.current_device()) if on_gpu else None
    cores = cores or usable_cores()
    with (
        ThreadPoolExecutor(min(THREADS, cores), initializer=begin) as threads,
        _Compiling(threads, min(MOST_PROCESSES, cores), progress, load=on_gpu),
    ):
        yield


def compile_launches(
    schedule: Schedule,
    calls: Sequence[Callable[[], None]],
    beside: Sequence[Callable[[], object]],
    device: torch.device,
    progress: Callable[[str, float], None] | None = None,
) -> None:
    """Compile the kernels of a schedule's launches by its calls, except those of eager ops.

    Kernels of eager ops may tune themselves, and may depend on addresses. Calls `beside` the
    schedule's launch what else a step does.
    """
    graph = schedule.graph
    with compiling(device, progress):
        for call in beside:
            call()
        for step, call in zip(schedule.steps, calls, strict=True):
            eager = step.pass_index >= 0 and graph.is_eager(graph.passes[step.pass_index])
            if step.lane is Lane.COMPUTE and not eager:
                call()


class _Deferred:
    """A placeholder for an uncompiled kernel, in Triton's cache of the variants of its function.

    Its launches do nothing inside `mode`. Outside, a launch compiles the kernel first where
    compilation failed, was interrupted, or runs in another thread.
    """

    def __init__(
        self, mode: AsyncCompileMode, compile_: Callable[[], Any], finalize: Finalize
    ) -> None:
        self._mode, self._compile, self._finalize = mode, compile_, finalize
        self._kernel: Any = None

    def is_of(self, mode: AsyncCompileMode) -> bool:
        """Whether a launch inside this mode made it."""
        return self._mode is mode

    def __getattr__(self, name: str) -> Any:
        if _async_compile.active_mode.get() is self._mode:
            return getattr(_NOT_RUN, name)
        if self._kernel is None:
            self._kernel = self._compile()
            self._finalize(self._kernel)
        return getattr(self._kernel, name)


@dataclass(frozen=True, slots=True)
class _Job:
    """A kernel to compile, and who receives it: the entries of several keys, if these make one."""

    compile: Callable[[], Any]
    finalizes: list[Finalize] = field(default_factory=list)


class _Compiling(AsyncCompileMode):  # type: ignore[misc]
    """Triton's mode of asynchronous compilation, with all compilation at its end.

    Compilation in this process that began at once would take the interpreter lock from the
    launching thread.
    """

    def __init__(
        self,
        executor: Executor,
        processes: int,
        progress: Callable[[str, float], None] | None,
        *,
        load: bool,
    ) -> None:
        super().__init__(executor)
        self._load, self._processes = load, processes
        self._progress = progress
        self._jobs: dict[str, _Job] = {}
        self._entries: list[Entry] = []  # which have placeholders
        self._made: dict[str, Future[None]] = {}
        self._missing: list[KernelSource] = []  # for other processes
        self._others: CompileProcess | None = None

    def submit(
        self, key: str, compile_: Callable[[], Any], finalize: Finalize, *_: Any
    ) -> _Deferred:
        """Note the kernel, with a placeholder in Triton's cache, as Triton has from 3.7 on.

        Else each further launch makes the key of the kernel again: half of the time in which the
        launches of HRNet-W18 are listed. Triton 3.9 also passes a callback that drops it, as
        `__exit__` does in all versions.
        """
        if key not in self._jobs:
            self._look_for(key, compile_)
            self._jobs[key] = _Job(compile_)
        deferred, finalizes = _Deferred(self, compile_, finalize), self._jobs[key].finalizes
        entry = _entry_of(finalize)
        if entry is None:
            finalizes.clear()  # every launch comes here
        else:
            cache, variant = entry
            cache.setdefault(variant, deferred)
            self._entries.append(entry)
        finalizes.append(finalize)
        return deferred

    def _look_for(self, key: str, compile_: Callable[[], Any]) -> None:
        """Note a kernel that another process can compile, if Triton's cache does not have it."""
        source = source_of(key, compile_) if self._processes > 1 else None
        if source is None or source.is_compiled or not can_pack(source):
            return
        self._missing.append(source)
        if len(self._missing) == FEW:  # the process starts while further kernels are collected
            self._others = early_process() or CompileProcess(self._processes)

    def __exit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        try:
            super().__exit__(kind, *raised)  # launches run from here on
            if kind is None:
                self._compile()
        finally:
            self._drop_placeholders()
            if self._others is not None and self._others is not early_process():
                self._others.close()

    def _drop_placeholders(self) -> None:
        """Leave kernels that failed, or were interrupted, to whoever launches or collects them."""
        for cache, variant in self._entries:
            found = cache.get(variant)
            if isinstance(found, _Deferred) and found.is_of(self):
                cache.pop(variant, None)

    def _compile(self) -> None:
        self._report(0.0)
        if self._others is not None:
            with suppress(WorkerError):  # threads then compile the rest
                self._wait(self._others)
        self._make_all(self._jobs)
        for done, _ in enumerate(as_completed(self._made.values()), 1):
            if self._others is None:
                self._report(done / len(self._made))
        self._report(1.0)

    def _wait(self, others: CompileProcess) -> None:
        """Wait for other processes, and report the share of kernels that the cache has.

        Threads make these ready meanwhile: up to Triton 3.6 each needs a launcher in C. Behind the
        wait, those of ResNet-50 took 2 s (16 cores, 2026-11-27). Another thread imports what torch
        imports with the first optimizer, in 0.8 s.
        """
        compiled = others.compile(self._missing)
        self.executor.submit(import_module, WITH_OPTIMIZERS)
        missing = {each.key: each for each in self._missing}
        while not compiled.done():
            self._make_all(self._jobs.keys() - missing.keys())
            wait([compiled], LOOK_S)
            missing = {key: each for key, each in missing.items() if not each.is_compiled}
            self._report(1.0 - len(missing) / len(self._missing))
        compiled.result()

    def _make_all(self, keys: Iterable[str]) -> None:
        """Start to make kernels ready that are not yet."""
        for key in keys:
            if key not in self._made:
                self._made[key] = self.executor.submit(self._make, self._jobs[key])

    def _report(self, fraction: float) -> None:
        if self._progress is not None and self._jobs:
            self._progress(STAGE, fraction)

    def _make(self, job: _Job) -> None:
        with suppress(Exception):
            kernel = job.compile()
            if self._load:
                kernel._init_handles()
            for finalize in job.finalizes:
                finalize(kernel)


def _entry_of(finalize: Finalize) -> Entry | None:
    """Where `finalize` puts a kernel, by the variables in its closure in versions 3.6 to 3.9.

    None for another function.
    """
    found = closure_of(finalize)
    known = {"kernel_cache", "key"} <= found.keys()
    return (found["kernel_cache"], found["key"]) if known else None


def _skip_launches_while_compiling() -> None:
    """Let launches inside `compiling` only compile, also those of kernels compiled before."""
    run = JITFunction.run
    if hasattr(run, "__wrapped__"):
        return

    @wraps(run)
    def compile_or_run(self: JITFunction, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        skips = isinstance(_async_compile.active_mode.get(), _Compiling)
        return run(self, *args, warmup=warmup or skips, **kwargs)

    JITFunction.run = compile_or_run


_skip_launches_while_compiling()
