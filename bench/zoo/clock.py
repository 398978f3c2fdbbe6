"""Seconds of steps, on a GPU and, for tests, on a CPU."""

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Final

import torch

from bench.timing import paced

GROUP: Final = 6  # steps of each of the groups of which the median is taken
ON_CPU: Final = 3  # steps


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


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def empty(device: torch.device) -> None:
    """Give the device's free memory back."""
    gc.collect()
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
