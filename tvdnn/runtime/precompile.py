"""Kernels compiled side by side, each once, before anything launches them."""

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
        ThreadPoolExecutor(min(THREADS, usable_cores()), initializer=begin) as threads,
        _Compiling(threads, load=on_gpu),
    ):
        yield


class _Deferred:
    """Stands for a kernel that is not compiled yet, in Triton's cache as well from 3.7 on.

    Its launches do nothing within `mode`. Outside, where compiling failed, was interrupted or goes
    on in another thread, a launch compiles the kernel first.
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
    """Triton's mode in which kernels compile on other threads, except that they begin at its end.

    Begun at once, they would take the interpreter from the thread that launches.
    """

    def __init__(self, executor: Executor, *, load: bool) -> None:
        super().__init__(executor)
        self._load = load
        self._jobs: dict[str, Job] = {}

    def submit(
        self, key: str, compile_: Callable[[], Any], finalize: Callable[[Any], None], *_: Any
    ) -> _Deferred:
        """Note the kernel. Triton 3.9 also passes what drops a failed kernel from its cache."""
        self._jobs[key] = compile_, finalize
        return _Deferred(self, self._jobs[key])

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
