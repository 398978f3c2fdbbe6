"""Kernels compiled side by side, each once, before anything launches them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
from triton import AsyncCompileMode

THREADS: Final = 12
Job = tuple[Callable[[], Any], Callable[[Any], None]]  # what compiles, and what takes the kernel
_NOT_RUN: Final = SimpleNamespace(
    function=None,
    packed_metadata=None,
    launch_metadata=lambda *_: None,
    run=lambda *_: None,
)


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """Within, launches of kernels that are not compiled do not run; at its end these kernels are.

    They are loaded on the present GPU as well, but for those that fail: these do so again where
    they are launched. So none waits for the launch of another: ResNet-50's, pass by pass, take
    45 s. Kernels compiled before, and torch's own, run on whatever those skipped have left.
    """
    on_gpu = device.type == "cuda"
    begin = partial(torch.cuda.set_device, torch.cuda.current_device()) if on_gpu else None
    with (
        ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), initializer=begin) as threads,
        _Compiling(threads, load=on_gpu),
    ):
        yield


class _Compiling(AsyncCompileMode):  # type: ignore[misc]
    """Triton's mode in which kernels compile on other threads, except that they begin at its end.

    Begun at once, they would take the interpreter from the thread that launches.
    """

    def __init__(self, executor: Executor, *, load: bool) -> None:
        super().__init__(executor)
        self._load = load
        self._jobs: dict[str, Job] = {}

    def submit(
        self, key: str, compile_: Callable[[], Any], finalize: Callable[[Any], None]
    ) -> SimpleNamespace:
        self._jobs[key] = compile_, finalize
        return _NOT_RUN

    def __exit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        super().__exit__(kind, *raised)  # from here on launches run
        if kind is None:
            list(self.executor.map(self._make, self._jobs.values()))

    def _make(self, job: Job) -> None:
        compile_, finalize = job
        with suppress(Exception):
            kernel = compile_()
            if self._load:
                kernel._init_handles()
            finalize(kernel)
