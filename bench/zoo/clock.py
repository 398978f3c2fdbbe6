"""Seconds of steps, on a GPU and, for tests, on a CPU."""

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any, Final

import torch

from bench.timing import paced

GROUP: Final = 6  # steps of each of the groups of which the median is taken
ON_CPU: Final = 3  # steps
SPANS: Final = "spans"  # a row's key: from and to, by the monotonic clock, under other keys

Row = dict[str, Any]


def step_seconds(step: Callable[[], object], device: torch.device) -> float:
    """The median seconds of a step, behind one that warms up."""
    if device.type == "cuda":
        return paced(step, GROUP)
    step()
    return median(seconds_of(step, device) for _ in range(ON_CPU))


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Seconds from a call until the device has done all."""
    begun_s = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - begun_s


def spanned(**spans: list[tuple[float, float]]) -> dict[str, Any]:
    """Entries of a row: the seconds in the spans of each name, and the spans.

    A process does not know when it was stopped. The process that stopped it takes that off.
    """
    return {**{name: _seconds_in(each) for name, each in spans.items()}, SPANS: spans}


def without_stops(row: Mapping[str, Any], stopped_s: Callable[[float, float], float]) -> Row:
    """The row without its spans, their seconds less those of stops."""
    found = {name: value for name, value in row.items() if name != SPANS}
    for name, spans in row.get(SPANS, {}).items():
        found[name] = _seconds_in(spans) - sum(stopped_s(*span) for span in spans)
    return found


def _seconds_in(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end_s - start_s for start_s, end_s in spans)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def empty(device: torch.device) -> None:
    """Give the device's free memory back."""
    gc.collect()
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
