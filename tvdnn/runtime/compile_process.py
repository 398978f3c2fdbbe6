"""Kernels compiled by other processes, into Triton's cache on disk.

Triton's front end holds the interpreter's lock. Threads of one process compile one after another
for most of the time.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from ..errors import WorkerError
from ..workers.forks import run_in_forks
from ..workers.process import Worker
from .kernel_sources import KernelSource, pack, unpack

# Importing it imports torch, Triton and all kernels, and settles how kernels are compiled.
_KERNELS: Final = "tvdnn.runtime.kernel_set"


class CompileProcess:
    """A worker process that compiles kernels in copies of itself, at most `processes` at a time.

    It imports the kernels once, from its start on. The copies share what it imported.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._thread = ThreadPoolExecutor(1)  # a worker ends with the thread that made it
        self._worker = self._thread.submit(partial(Worker, imports=(_KERNELS,)))

    def compile(self, sources: Sequence[KernelSource]) -> Future[None]:
        """Compile sources that can be packed. Those that fail are not in the cache afterwards.

        The future raises WorkerError where the process did not start or was ended.
        """
        longest_first = sorted(sources, key=_length, reverse=True)
        job = partial(compile_all, pack(longest_first), self._processes)
        return self._thread.submit(lambda: self._worker.result().call(job))

    def close(self) -> None:
        """End the process and its copies, also in the middle of a job."""
        worker: Worker | None = None
        with suppress(WorkerError):
            worker = self._worker.result()
            worker.end()
        self._thread.shutdown(cancel_futures=True)
        if worker is not None:
            worker.close()


def _length(source: KernelSource) -> tuple[bool, int]:
    """Orders kernels by about how long they compile.

    Kernels of Gluon took 1.0 to 1.8 s of CPU time each, Triton's at most 0.9 s, mostly by the
    length of their code (ResNet-50, Triton 3.9, compute capability 9.0, 2026-11-27).
    """
    return source.source.ext == "ttgir", len(source.source.fn.src)


def compile_all(packed: bytes, processes: int) -> None:
    """Compile packed sources into Triton's cache, in copies of this process."""
    run_in_forks([source.compile for source in unpack(packed)], processes)
