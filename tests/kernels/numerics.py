"""Random and poisoned tensors, error measures and repeatability, for the kernel tests."""

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from tvdnn.kernels.language.rounding import stored_reference

NUM_REPEATS: Final = 20


def randn(
    shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator, scale: float = 1.0
) -> Tensor:
    """Normal values on the generator's device, rounded to the dtype."""
    values = torch.randn(tuple(shape), generator=generator, device=generator.device)
    return (values * scale).to(dtype)


def poison(tensor: Tensor) -> Tensor:
    """Fill a tensor with NaN, or the largest integer."""
    wide = tensor.dtype.is_floating_point
    return tensor.fill_(math.nan if wide else torch.iinfo(tensor.dtype).max)


def poisoned(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An output that holds NaN, or the largest integer. Elements left unwritten show."""
    return poison(torch.empty(tuple(shape), dtype=dtype, device=device))


def poisoned_like(tensor: Tensor) -> Tensor:
    """A contiguous poisoned tensor of another's shape, dtype and device."""
    return poisoned(tensor.shape, tensor.dtype, tensor.device)


def as_range(values: Tensor, *, before: int = 8, after: int = 16) -> Tensor:
    """A copy of maps as a range of the channels of wider ones, which are poisoned beside it."""
    channels = values.shape[-1]
    shape = (*values.shape[:-1], before + channels + after)
    wide = poisoned(shape, values.dtype, values.device)
    return wide[..., before : before + channels].copy_(values)


def is_poisoned_beside(part: Tensor) -> bool:
    """Whether nothing was written beside a range that `as_range` made."""
    pitch, channels, start = part.stride(-2), part.shape[-1], part.storage_offset()
    wide = part.as_strided((*part.shape[:-1], pitch), part.stride(), 0)
    around = torch.cat((wide[..., :start], wide[..., start + channels :]), -1)
    return bool(torch.equal(around.isnan(), torch.ones_like(around, dtype=torch.bool)))


def rms_error(actual: Tensor, expected: Tensor) -> float:
    """RMS of the difference over the expected RMS; NaN where any element is; 0 if both are 0."""
    assert actual.shape == expected.shape
    if actual.numel() == 0:
        return 0.0
    difference = (actual.double() - expected.double()).square().mean().sqrt()
    magnitude = expected.double().square().mean().sqrt()
    return 0.0 if difference == 0 else float(difference / magnitude)


def by_autograd(
    function: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor]:
    """The function's value and its input's gradient by torch's autograd, in x's type."""
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    (dx,) = torch.autograd.grad(y, leaf, dy)
    return y.detach(), dx


def assert_rounds(launch: Callable[..., None], *outputs: Tensor) -> None:
    """For TF32 products a launch stores its results rounded, in outputs like these."""
    plain, rounded = ([poisoned_like(each) for each in outputs] for _ in range(2))
    launch(*plain, precision="ieee")
    launch(*rounded, precision="tf32")
    for exact, found in zip(plain, rounded, strict=True):
        assert torch.equal(found, stored_reference(exact, torch.float32, "tf32"))
        assert not torch.equal(found, exact)


def assert_same_bits_in_runs(
    forward: Callable[..., None], backward: Callable[..., None], x: Tensor, dy: Tensor
) -> None:
    """Launches over runs of rows, of [19, 577], have the bits of one over all."""
    y, dx, part_y, part_dx = (poisoned_like(x) for _ in range(4))
    forward(x, y)
    backward(x, dy, dx)
    for rows in (slice(0, 1), slice(1, 4), slice(4, 19)):
        forward(x[rows], part_y[rows])
        backward(x[rows], dy[rows], part_dx[rows])
    assert torch.equal(y, part_y)
    assert torch.equal(dx, part_dx)


def assert_repeatable(launch: Callable[[], None], *outputs: Tensor) -> None:
    """Launches give the same bits while copies, both ways, and products run beside them."""
    launch()
    expected = [output.clone() for output in outputs]
    beside = Beside(torch.device("cuda"))
    for _ in range(NUM_REPEATS):
        for output in outputs:
            poison(output)
        torch.cuda.synchronize()
        beside.start()
        launch()
        torch.cuda.synchronize()
        for output, first in zip(outputs, expected, strict=True):
            assert torch.equal(output, first)


class Beside:
    """Work on three other streams of a GPU: a copy each way, and matrix products."""

    def __init__(self, device: torch.device) -> None:
        self.streams = [torch.cuda.Stream(device) for _ in range(3)]
        self.device = [torch.ones(16 << 20, device=device) for _ in range(2)]
        self.host = [torch.ones(16 << 20, pin_memory=True) for _ in range(2)]
        self.factor = torch.ones(2048, 2048, dtype=torch.bfloat16, device=device)
        self.product = torch.empty_like(self.factor)

    def start(self) -> None:
        out, back, compute = self.streams
        with torch.cuda.stream(out):
            self.host[0].copy_(self.device[0], non_blocking=True)
        with torch.cuda.stream(back):
            self.device[1].copy_(self.host[1], non_blocking=True)
        with torch.cuda.stream(compute):
            for _ in range(20):
                torch.mm(self.factor, self.factor, out=self.product)
