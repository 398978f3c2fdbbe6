"""Random and poisoned tensors, error measures and repeatability, for the kernel tests."""

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

NUM_REPEATS: Final = 20


def randn(
    shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator, scale: float = 1.0
) -> Tensor:
    """Normal values on the generator's device, rounded to the dtype."""
    values = torch.randn(tuple(shape), generator=generator, device=generator.device)
    return (values * scale).to(dtype)


def poisoned(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An output that holds NaN, so that what a kernel leaves unwritten shows."""
    return torch.full(tuple(shape), math.nan, dtype=dtype, device=device)


def poisoned_like(tensor: Tensor) -> Tensor:
    """A contiguous poisoned tensor of another's shape, dtype and device."""
    return poisoned(tensor.shape, tensor.dtype, tensor.device)


def rms_error(actual: Tensor, expected: Tensor) -> float:
    """RMS of the difference over RMS of what is expected; NaN if anything is; 0 if both are 0."""
    assert actual.shape == expected.shape
    if actual.numel() == 0:
        return 0.0
    difference = (actual.double() - expected.double()).square().mean().sqrt()
    magnitude = expected.double().square().mean().sqrt()
    return 0.0 if difference == 0 else float(difference / magnitude)


def assert_repeatable(launch: Callable[[], None], *outputs: Tensor) -> None:
    """Launches give the same bits every time while copies run beside them; needs a GPU."""
    launch()
    expected = [output.clone() for output in outputs]
    source = torch.empty(64 << 20, dtype=torch.uint8, device=outputs[0].device)
    target = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    beside = torch.cuda.Stream()
    for _ in range(NUM_REPEATS):
        for output in outputs:
            output.fill_(math.nan)
        torch.cuda.synchronize()
        with torch.cuda.stream(beside):
            target.copy_(source, non_blocking=True)
        launch()
        torch.cuda.synchronize()
        for output, first in zip(outputs, expected, strict=True):
            assert torch.equal(output, first)
