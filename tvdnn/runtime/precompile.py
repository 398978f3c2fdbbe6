"""Parallel compilation of kernels before their first launch."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
from triton import AsyncCompileMode
from triton.runtime import _async_compile

from ..workers.cores import usable_cores
from .triton_launchers import keep_launchers_apart

keep_launchers_apart()
THREADS: Final = 12
# A function that compiles a kernel, and one that receives the compiled kernel.
Job = tuple[Callable[[], Any], Callable[[Any], None]]
_NOT_RUN: Final = SimpleNamespace(
    function=None,
    packed_metadata=None,
    launch_metadata=lambda *_: None,
    run=lambda *_: None,
)


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """Collect the kernels that launches inside the context ask for, and compile them on exit.

    Launches of uncompiled kernels do nothing inside. Compiled kernels are also loaded on the
    present GPU. A kernel that fails to compile fails again at its launch. Compiled one after
    another, the kernels of ResNet-50 take 45 s. Kernels compiled before, and torch's own kernels,
    run inside the context on whatever the skipped launches left.
    """
    on_gpu = device.type == "cuda"
    begin = partial(torch.cuda.set_device, torch.cuda.current_device()) if on_gpu else None
    with (
        ThreadPoolExecutor(min(THREADS, usable_cores()), initializer=begin) as threads,
        _Compiling(threads, load=on_gpu),
    ):
        yield


class _Deferred:
    """A placeholder for an uncompiled kernel, from Triton 3.7 on also in Triton's cache.

    Its launches do nothing inside `mode`. Outside, a launch compiles the kernel first where
    compilation failed, was interrupted, or runs in another thread.
    """

    def __init__(self, mode: AsyncCompileMode, job: Job) -> None:
        self._mode, self._job = mode, job

    def __getattr__(self, name: str) -> Any:
        if _async_compile.active_mode.get() is self._mode:
            return getattr(_NOT_RUN, name)
        compile_, finalize = self._job
        finalize(kernel := compile_())
        return getattr(kernel, name)


class _Compiling(AsyncCompileMode):  # type: ignore[misc]
    """Triton's mode of asynchronous compilation, with all compilation at its end.

    Compilation that began at once would take the interpreter lock from the launching thread.
    """

    def __init__(self, executor: Executor, *, load: bool) -> None:
        super().__init__(executor)
        self._load = load
        self._jobs: dict[str, Job] = {}

    def submit(
        self, key: str, compile_: Callable[[], Any], finalize: Callable[[Any], None], *_: Any
    ) -> _Deferred:
        """Note the kernel. Triton 3.9 also passes a callback that drops a failed kernel."""
        self._jobs[key] = compile_, finalize
        return _Deferred(self, self._jobs[key])

    def __exit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        super().__exit__(kind, *raised)  # launches run from here on
        if kind is None:
            list(self.executor.map(self._make, self._jobs.values()))

    def _make(self, job: Job) -> None:
        compile_, finalize = job
        with suppress(Exception):
            kernel = compile_()
            if self._load:
                kernel._init_handles()
            finalize(kernel)
