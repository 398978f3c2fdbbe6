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
Asked = tuple[Callable[[], Any], Callable[[Any], None]]  # what compiles, and what takes the kernel
_NOT_RUN: Final = SimpleNamespace(
    function=None,
    packed_metadata=None,
    launch_metadata=lambda *_: None,
    run=lambda *_: None,
)


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """Within, launches of kernels that are not compiled yet do not run; at the end these are.

    They are loaded as well, but for those that fail: these do so again where they are launched. So
    no kernel waits for the launch of another: those of DenseNet-121, pass by pass, take 45 s.
    """
    on_gpu = device.type == "cuda"
    begin = partial(torch.cuda.set_device, device) if on_gpu else None
    with (
        ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), initializer=begin) as threads,
        _Compiling(threads, load=on_gpu),
    ):
        yield


class _Compiling(AsyncCompileMode):  # type: ignore[misc]
    """Triton's mode in which kernels compile on other threads, except that they begin at its end.

    What launches would else wait for the interpreter, which those threads need as well.
    """

    def __init__(self, executor: Executor, *, load: bool) -> None:
        super().__init__(executor)
        self._load = load
        self._asked: dict[str, Asked] = {}

    def submit(
        self, key: str, compile_: Callable[[], Any], finalize: Callable[[Any], None]
    ) -> SimpleNamespace:
        self._asked[key] = compile_, finalize
        return _NOT_RUN

    def __exit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        super().__exit__(kind, *raised)  # from here on launches run
        if kind is None:
            list(self.executor.map(self._make, self._asked.values()))

    def _make(self, asked: Asked) -> None:
        compile_, finalize = asked
        with suppress(Exception):
            kernel = compile_()
            if self._load:
                kernel._init_handles()
            finalize(kernel)
