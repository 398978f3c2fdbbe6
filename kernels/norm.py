"""Local response normalization across the channels of NHWC maps (Krizhevsky et al. 2012).

y = x / s^beta with s = k + alpha / size * (sum of x^2 over a window of `size` channels). The
gradient computes s again, from x. Windows reach their neighbours through the cache.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

TILE: Final = 2048
GRAD_TILE: Final = 512
NUM_WARPS: Final = 4


@triton.jit
def _scale(x_ptr, c, in_map, channels, share, k, SIZE: tl.constexpr):
    """Scales s at channels c of rows that begin at x_ptr; `share` is alpha / SIZE."""
    total = c * 0.0
    for step in tl.static_range(SIZE):
        neighbour = c + (step - SIZE // 2)
        mask = in_map & (neighbour >= 0) & (neighbour < channels)
        x = tl.load(x_ptr + neighbour, mask=mask, other=0.0).to(tl.float32)
        total += x * x
    return k + share * total


@triton.jit
def _power(base, exponent):
    return tl.exp2(exponent * tl.log2(base))


@triton.jit
def _place(num_pixels, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Offset of this program's pixel rows [BLOCK_P, 1], its channels, and what lies in the map."""
    tiles_c = tl.cdiv(channels, BLOCK_C)
    pid = tl.program_id(0).to(tl.int64)
    pixels = pid // tiles_c * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = (pid % tiles_c).to(tl.int32) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    return pixels * channels, c, (pixels < num_pixels) & (c < channels)


@triton.jit(do_not_specialize=["num_pixels"])
def _lrn_kernel(
    x_ptr, y_ptr, num_pixels, channels, share, beta, k,
    SIZE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    rows, c, in_map = _place(num_pixels, channels, BLOCK_P, BLOCK_C)
    x = tl.load(x_ptr + rows + c, mask=in_map, other=0.0).to(tl.float32)
    scale = _scale(x_ptr + rows, c, in_map, channels, share, k, SIZE)
    y = x * _power(scale, -beta)
    tl.store(y_ptr + rows + c, y.to(y_ptr.dtype.element_ty), mask=in_map)


@triton.jit(do_not_specialize=["num_pixels"])
def _lrn_grad_kernel(
    x_ptr, dy_ptr, dx_ptr, num_pixels, channels, share, beta, k,
    SIZE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx = dy s^-beta - 2 share beta x * (sum of dy x s^(-beta - 1) over windows that hold x)."""
    rows, c, in_map = _place(num_pixels, channels, BLOCK_P, BLOCK_C)
    x = ()  # of the channels that any of those windows holds
    for step in tl.static_range(2 * SIZE - 1):
        neighbour = c + (step - (SIZE - 1))
        mask = in_map & (neighbour >= 0) & (neighbour < channels)
        x += (tl.load(x_ptr + rows + neighbour, mask=mask, other=0.0).to(tl.float32),)
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    dx = total
    for step in tl.static_range(SIZE):
        centre = c + (step - (SIZE - 1) // 2)
        mask = in_map & (centre >= 0) & (centre < channels)
        dy = tl.load(dy_ptr + rows + centre, mask=mask, other=0.0).to(tl.float32)
        squares = total * 0.0
        for place in tl.static_range(SIZE):
            squares += x[step + place] * x[step + place]
        scale = k + share * squares
        upper = dy * _power(scale, -beta)
        total += tl.where(mask, upper * x[step + SIZE // 2] / scale, 0.0)
        if step == (SIZE - 1) // 2:
            dx = upper
    dx -= 2.0 * share * beta * x[SIZE - 1] * total
    tl.store(dx_ptr + rows + c, dx.to(dx_ptr.dtype.element_ty), mask=in_map)


def _launch(
    kernel: triton.JITFunction, tensors: tuple[Tensor, ...], tile: int, size: int, *settings: float
) -> None:
    channels = tensors[0].shape[-1]
    num_pixels = tensors[0].numel() // channels
    block_c = min(triton.next_power_of_2(channels), tile)
    block_p = tile // block_c
    grid = (triton.cdiv(num_pixels, block_p) * triton.cdiv(channels, block_c),)
    if num_pixels == 0:
        return
    kernel[grid](
        *tensors, num_pixels, channels, *settings,
        SIZE=size, BLOCK_P=block_p, BLOCK_C=block_c, num_warps=NUM_WARPS,
    )  # fmt: skip


def local_response_norm(
    x: Tensor, y: Tensor, *, size: int, alpha: float, beta: float, k: float
) -> None:
    """y = x / s^beta as torch.nn.LocalResponseNorm has it; maps [..., C]."""
    _launch(_lrn_kernel, (x, y), TILE, size, alpha / size, beta, k)


def local_response_norm_grad(
    x: Tensor, dy: Tensor, dx: Tensor, *, size: int, alpha: float, beta: float, k: float
) -> None:
    """dx of `local_response_norm`, from its input alone; dx must be neither x nor dy."""
    _launch(_lrn_grad_kernel, (x, dy, dx), GRAD_TILE, size, alpha / size, beta, k)


def _window_sum(values: Tensor, before: int, after: int) -> Tensor:
    """Sums over the channels c - before .. c + after."""
    return functional.pad(values, (before, after)).unfold(-1, before + after + 1, 1).sum(-1)


def _scale_of(x: Tensor, size: int, alpha: float, k: float) -> Tensor:
    return k + alpha / size * _window_sum(x * x, size // 2, (size - 1) // 2)


def local_response_norm_reference(
    x: Tensor, y: Tensor, *, size: int, alpha: float, beta: float, k: float
) -> None:
    """What `local_response_norm` computes."""
    wide = x.float()
    y.copy_(wide * _scale_of(wide, size, alpha, k).pow(-beta))


def local_response_norm_grad_reference(
    x: Tensor, dy: Tensor, dx: Tensor, *, size: int, alpha: float, beta: float, k: float
) -> None:
    """What `local_response_norm_grad` computes."""
    wide, upper = x.float(), dy.float()
    scale = _scale_of(wide, size, alpha, k)
    products = _window_sum(upper * wide * scale.pow(-beta - 1), (size - 1) // 2, size // 2)
    dx.copy_(upper * scale.pow(-beta) - 2 * alpha / size * beta * wide * products)
