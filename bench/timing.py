"""Times of calls and of steps on the GPU, and what this GPU reaches at most."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from bench import cached_copy

FLUSH_NBYTES: Final = 256 << 20  # several times the L2 cache
SLEEP_CYCLES: Final = 4_000_000  # two milliseconds in which the host queues a round of few launches
GROUPS: Final = 3  # of steps, timed one behind the other
MATMUL_SIDE: Final = 8192
COPIED_NBYTES: Final = 2 << 30
CACHED_NBYTES: Final = 50_000_000  # operands that the L2 cache of an H100 or H200 may hold

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates measured on this GPU: of copies, whose bytes are read and written, and of products."""

    bytes_per_s: float  # of the memory
    flops_per_s: Mapping[str, float]
    cached_bytes_per_s: float | None = None  # of the L2 cache; None stands for the memory's

    def least_s(self, flops: float, nbytes: float, dtype: str) -> float:
        """Seconds under which one launch of this cost cannot be done: its roofline."""
        rate = self.bytes_per_s
        if nbytes <= CACHED_NBYTES and self.cached_bytes_per_s is not None:
            rate = self.cached_bytes_per_s
        return max(flops / self.flops_per_s[dtype], nbytes / rate)


def in_turns(calls: Mapping[str, Call], rounds: int, *, sleeps: int = 1) -> dict[str, float]:
    """Median seconds of each call over rounds of all of them, each with a cold L2 cache.

    The GPU sleeps while the host queues a round, `sleeps` times where calls have many launches. No
    launch then waits for the host.
    """
    flushed = torch.empty(FLUSH_NBYTES, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        torch.cuda._sleep(sleeps * SLEEP_CYCLES)
        spans = {name: _span(call, flushed) for name, call in calls.items()}
        torch.cuda.synchronize()
        for name, (start, end) in spans.items():
            times[name].append(start.elapsed_time(end) / 1e3)
    return {name: median(values) for name, values in times.items()}


def _span(call: Call, flushed: Tensor) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flushed.zero_()
    start.record()
    call()
    end.record()
    return start, end


def paced(step: Call, each: int) -> float:
    """Seconds of a step among others, as in training: the median over groups of `each` steps.

    Groups follow one another, and one step before them, without a pause: a step by itself waits for
    the host, which takes 1 ms to launch DenseNet-121's 1,500 kernels.
    """
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(1 + GROUPS)]
    step()
    ends[0].record()
    for end in ends[1:]:
        for _ in range(each):
            step()
        end.record()
    torch.cuda.synchronize()
    return median(before.elapsed_time(end) for before, end in pairwise(ends)) / each / 1e3


def timed(call: Call) -> float:
    """Seconds from the host's call until the device has done all."""
    torch.cuda.synchronize()
    begin = perf_counter()
    call()
    torch.cuda.synchronize()
    return perf_counter() - begin


def measure_ceilings() -> Ceilings:
    """Rates on random data."""
    source = torch.randn(COPIED_NBYTES // 4, device="cuda")
    target = torch.empty_like(source)
    copy_s = in_turns({"copy": lambda: target.copy_(source)}, 10)["copy"]
    rates = {name: _matmul_rate(kind) for name, kind in DTYPES.items()}
    return Ceilings(2 * COPIED_NBYTES / copy_s, rates, _cached_copy_rate())


def _cached_copy_rate() -> float:
    """Bytes a second that copies of the same bytes, in one launch, read and write."""
    source, target = cached_copy.operands()
    programs = cached_copy.programs_of_device()
    copies = partial(cached_copy.copy_often, source, target, cached_copy.COPIES, programs)
    seconds = in_turns({"copies": copies}, 10)["copies"]
    return 2 * cached_copy.COPIES * cached_copy.NBYTES / seconds


def _matmul_rate(dtype: torch.dtype) -> float:
    a, b = (torch.randn(MATMUL_SIDE, MATMUL_SIDE, device="cuda").to(dtype) for _ in range(2))
    return 2 * MATMUL_SIDE**3 / in_turns({"product": lambda: a @ b}, 10)["product"]


DTYPES: Final = {"bf16": torch.bfloat16, "tf32": torch.float32}


@contextmanager
def recorded() -> Iterator[list[str]]:
    """The Triton kernels launched meanwhile, each once, with its constants and warps."""
    launched: list[str] = []
    run = JITFunction.run

    def recording(self: JITFunction, *arguments: Any, **settings: Any) -> Any:
        kernel = run(self, *arguments, **settings)
        text = f"{self.__name__}({_constants(settings)})"
        if text not in launched:
            launched.append(text)
        return kernel

    with patch.object(JITFunction, "run", recording):
        yield launched


def _constants(settings: Mapping[str, Any]) -> str:
    """Tile sizes, stages and warps among a launch's settings."""
    kept = ("BLOCK", "STAGES", "num_")
    return ", ".join(
        f"{name}={value}" for name, value in settings.items() if any(k in name for k in kept)
    )
