"""Kernels compiled by other processes, into Triton's cache on disk.

Triton's front end holds the interpreter's lock. Threads of one process compile one after another
for most of the time.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Final

import torch
from triton.runtime import cache

from ..errors import WorkerError
from ..kernels.language.gluon import available as gluon_available
from ..workers.cores import usable_cores
from ..workers.forks import run_in_forks
from ..workers.process import Worker
from .kernel_sources import KernelSource, pack, unpack
from .torch_names import import_kernels

# Each takes up to 150 MB beside what it shares with the others (ResNet-50, Triton 3.9, 2026-11-27).
MOST_PROCESSES: Final = 32
# Cores from which on a process is started before a kernel is missing: one is then spare.
MANY_CORES: Final = 4
# The kernels that take longest, in this order: 2 to 4 s on 16 cores at once (VGG-16, ResNet-50,
# Triton 3.6, 2026-11-29).
SLOWEST: Final = (
    "grad_weight_windows_kernel",
    "conv_windows_kernel",
    "_strips_grad_weight_kernel",
    "_depthwise_rows_kernel",
    "_depthwise_grad_weight_kernel",
    "conv_specialized_kernel",
    "conv_box_kernel",
    "grad_weight_flat_kernel",
    "_wide_kernel",
)
_EARLY: ContextVar["CompileProcess | None"] = ContextVar("early", default=None)


class CompileProcess:
    """A worker process that compiles kernels in copies of itself, at most `processes` at a time.

    It imports the kernels once, from its start on and without torch. The copies share them.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._thread = ThreadPoolExecutor(1)  # a worker ends with the thread that made it
        self._worker = self._thread.submit(Worker)
        self._imported = self._thread.submit(lambda: self._worker.result().call(import_kernels))

    def compile(self, sources: Sequence[KernelSource]) -> Future[None]:
        """Compile sources that can be packed. Those that fail are not in the cache afterwards.

        The future raises WorkerError where the process did not start, failed or was ended.
        """
        longest_first = sorted(sources, key=_rank)
        job = partial(compile_all, pack(longest_first), _triton_key(), self._processes)
        return self._thread.submit(self._run, job)

    def _run(self, job: Callable[[], None]) -> None:
        """Run a job behind the imports. Raises WorkerError for whatever fails of both."""
        try:
            self._imported.result()
            self._worker.result().call(job)
        except WorkerError:
            raise
        except Exception as error:
            raise WorkerError(f"a process compiles no kernels: {error!r}") from error

    def close(self) -> None:
        """End the process and its copies, also in the middle of a job."""
        worker: Worker | None = None
        with suppress(WorkerError):
            worker = self._worker.result()
            worker.end()
        self._thread.shutdown(cancel_futures=True)
        if worker is not None:
            worker.close()


@contextmanager
def compiling_soon(device: torch.device, kernels: str | None) -> Iterator[None]:
    """Within it, on enough cores, a process that compiles starts before kernels are missing.

    It imports Triton and all kernels while the caller traces and plans: 0.5 s of CPU time, in vain
    where none is missing. A thread makes Triton's driver meanwhile, in 0.5 s, and tries Gluon by a
    release that is not known, while this one hashes Triton's files for the first launch, in 0.4 s
    (H200, 2026-11-29). `kernels` are the engine's, None for those of the device.
    """
    cores = usable_cores()
    if device.type != "cuda" or kernels == "torch" or cores < MANY_CORES:
        yield
        return
    process = CompileProcess(min(MOST_PROCESSES, cores))
    token = _EARLY.set(process)
    try:
        with ThreadPoolExecutor(1) as beside:
            beside.submit(gluon_available)
            _triton_key()
            yield
    finally:
        _EARLY.reset(token)
        process.close()


def _triton_key() -> str:
    """Triton's hash of its own files, which it keeps; "" from a version that has none."""
    found = getattr(cache, "triton_key", str)
    return str(found())


def early_process() -> CompileProcess | None:
    """The process that `compiling_soon` has started, if this is within it."""
    return _EARLY.get()


def _rank(source: KernelSource) -> tuple[int, int]:
    """Orders kernels by how long they compile, the longest first: SLOWEST, then by their code."""
    function = source.source.fn
    name = function.fn.__name__
    return SLOWEST.index(name) if name in SLOWEST else len(SLOWEST), -len(function.src)


def compile_all(packed: bytes, triton_key: str, processes: int) -> None:
    """Compile packed sources into Triton's cache, in copies of this process.

    `triton_key` is Triton's hash of its own files. Each copy would make it again in 0.3 s: the 84
    kernels of ResNet-50 took 41.8 s of CPU time in 16 copies, and take 36.7 (Triton 3.6,
    2026-11-29).
    """
    if triton_key:
        cache.triton_key = lambda: triton_key
    run_in_forks([source.compile for source in unpack(packed)], processes)
