"""Local response normalization across the channels of NHWC maps (Krizhevsky et al. 2012).

y = x / s^beta with s = k + alpha / size * (sum of x^2 over a window of `size` channels). The
gradient computes s again from x. A thread holds a vector of 16 bytes of channels and SIDE vectors
on either side of it. Windows then lie within its registers. Outputs are rounded as products of
`precision` read them.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from ..language.rounding import stored, stored_reference

VECTORS: Final = 256  # vectors of 16 bytes of a program
NUM_WARPS: Final = 4


@triton.jit
def _split(vectors) -> tl.tuple:
    """The elements of vectors [P, G, 4 or 8], each [P, G]."""
    if vectors.shape[2] == 8:
        even, odd = tl.split(vectors.reshape(vectors.shape[0], vectors.shape[1], 4, 2))
        e, o = _split(even), _split(odd)
        elements = (e[0], o[0], e[1], o[1], e[2], o[2], e[3], o[3])
    else:
        even, odd = tl.split(vectors.reshape(vectors.shape[0], vectors.shape[1], 2, 2))
        e, o = tl.split(even), tl.split(odd)
        elements = (e[0], o[0], e[1], o[1])
    return elements


@triton.jit
def _interleaved(elements) -> tl.tensor:
    """The inverse of `_split`: vectors [P, G, 4 or 8]."""
    if len(elements) == 8:
        even = _interleaved((elements[0], elements[2], elements[4], elements[6]))
        odd = _interleaved((elements[1], elements[3], elements[5], elements[7]))
    else:
        even = tl.join(elements[0], elements[2])
        odd = tl.join(elements[1], elements[3])
    pairs = tl.join(even, odd)
    return pairs.reshape(pairs.shape[0], pairs.shape[1], len(elements))


@triton.jit
def _place(num_pixels, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Offsets of this program's pixels [PIXELS, 1], channels [1, CHANNELS], mask of the pixels."""
    tiles = tl.cdiv(channels, CHANNELS)
    pid = tl.program_id(0).to(tl.int64)
    pixels = pid // tiles * PIXELS + tl.arange(0, PIXELS)[:, None]
    c = (pid % tiles).to(tl.int32) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    return pixels * channels, c, pixels < num_pixels


@triton.jit
def _vectors(tile, VECTOR: tl.constexpr):
    """A tile [P, C] as vectors [P, G, VECTOR]."""
    return tile.reshape(tile.shape[0], tile.shape[1] // VECTOR, VECTOR)


@triton.jit
def _around(ptrs, c, in_map, channels, SIDE: tl.constexpr, VECTOR: tl.constexpr) -> tl.tuple:
    """The elements of channels c and of SIDE vectors before and after them, float32 [P, G] each.

    Loads have two dimensions. With three, threads would run along the pixels first: 61% instead of
    84% of a copy's speed for 64 channels in bfloat16 (H200, 2026-11-21).
    """
    elements = ()
    for i in tl.static_range(2 * SIDE + 1):
        near = c + (i - SIDE) * VECTOR
        tile = tl.load(ptrs + near, mask=in_map & (near >= 0) & (near < channels), other=0.0)
        elements += _split(_vectors(tile.to(tl.float32), VECTOR))
    return elements


@triton.jit
def _scale(squares, share, k, FIRST: tl.constexpr, SIZE: tl.constexpr):
    """The scale s of a window that begins with element FIRST; `share` is alpha / SIZE."""
    total = squares[FIRST]
    for i in tl.static_range(1, SIZE):
        total += squares[FIRST + i]
    return k + share * total


@triton.jit
def _powers(scale, BETA: tl.constexpr):
    """s^-beta and 1 / s. For beta = 0.75 by two roots, which are faster than a logarithm."""
    if BETA == 0.75:
        root = tl.rsqrt(scale)
        power, inverse = root * tl.sqrt(root), root * root
    else:
        power, inverse = tl.exp2(-BETA * tl.log2(scale)), 1.0 / scale
    return power, inverse


@triton.jit
def _squares(x) -> tl.tuple:
    squares = ()
    for i in tl.static_range(len(x)):
        squares += (x[i] * x[i],)
    return squares


@triton.jit(do_not_specialize=["num_pixels"])
def _lrn_kernel(
    x_ptr, y_ptr, num_pixels, channels, share, k, BETA: tl.constexpr, SIZE: tl.constexpr,
    SIDE: tl.constexpr, PRECISION: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    rows, c, in_map = _place(num_pixels, channels, PIXELS, CHANNELS)
    x = _around(x_ptr + rows, c, in_map, channels, SIDE, VECTOR)
    squares = _squares(x)
    y = ()
    for i in tl.static_range(SIDE * VECTOR, SIDE * VECTOR + VECTOR):
        power, _ = _powers(_scale(squares, share, k, i - SIZE // 2, SIZE), BETA)
        y += (x[i] * power,)
    y = stored(_interleaved(y).reshape(PIXELS, CHANNELS), y_ptr.dtype.element_ty, PRECISION)
    tl.store(y_ptr + rows + c, y, mask=in_map & (c < channels))


@triton.jit(do_not_specialize=["num_pixels"])
def _lrn_grad_kernel(
    x_ptr, dy_ptr, dx_ptr, num_pixels, channels, share, k, BETA: tl.constexpr, SIZE: tl.constexpr,
    SIDE: tl.constexpr, PRECISION: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """dx = dy s^-beta - 2 share beta x * (sum of dy x s^(-beta - 1) over windows that hold x)."""
    BEFORE: tl.constexpr = (SIZE - 1) // 2  # centres of windows that hold a channel
    OWN: tl.constexpr = SIDE * VECTOR
    rows, c, in_map = _place(num_pixels, channels, PIXELS, CHANNELS)
    x = _around(x_ptr + rows, c, in_map, channels, SIDE, VECTOR)
    dy = _around(dy_ptr + rows, c, in_map, channels, SIDE, VECTOR)
    squares = _squares(x)
    first_c = _split(_vectors(c, VECTOR))[0]  # [1, G]
    upper, terms = (), ()  # of the channels from OWN - BEFORE on
    for i in tl.static_range(OWN - BEFORE, OWN + VECTOR + SIZE // 2):
        power, inverse = _powers(_scale(squares, share, k, i - SIZE // 2, SIZE), BETA)
        centre = first_c + (i - OWN)
        upper += (dy[i] * power,)
        term = dy[i] * power * x[i] * inverse
        terms += (tl.where((centre >= 0) & (centre < channels), term, 0.0),)
    dx = ()
    for i in tl.static_range(VECTOR):
        total = terms[i]
        for j in tl.static_range(1, SIZE):
            total += terms[i + j]
        dx += (upper[i + BEFORE] - 2.0 * share * BETA * x[OWN + i] * total,)
    dx = stored(_interleaved(dx).reshape(PIXELS, CHANNELS), dx_ptr.dtype.element_ty, PRECISION)
    tl.store(dx_ptr + rows + c, dx, mask=in_map & (c < channels))


def _launch(
    kernel: triton.JITFunction, tensors: tuple[Tensor, ...], size: int, reach: int,
    alpha: float, beta: float, k: float, precision: str,
) -> None:  # fmt: skip
    """`reach` is the number of channels on one side that a channel's result depends on, at most."""
    channels = tensors[0].shape[-1]
    num_pixels = tensors[0].numel() // channels
    if num_pixels == 0:
        return
    vector = 16 // tensors[0].element_size()
    groups = min(triton.next_power_of_2(triton.cdiv(channels, vector)), VECTORS)
    pixels = VECTORS // groups
    grid = (triton.cdiv(num_pixels, pixels) * triton.cdiv(channels, groups * vector),)
    kernel[grid](
        *tensors, num_pixels, channels, alpha / size, k, BETA=beta, SIZE=size,
        SIDE=triton.cdiv(reach, vector), PRECISION=precision,
        PIXELS=pixels, CHANNELS=groups * vector, VECTOR=vector, num_warps=NUM_WARPS,
    )  # fmt: skip


def local_response_norm(
    x: Tensor, y: Tensor, *, size: int, alpha: float, beta: float, k: float, precision: str = "ieee"
) -> None:
    """y = x / s^beta for contiguous maps [..., C], as torch.nn.LocalResponseNorm computes it."""
    _launch(_lrn_kernel, (x, y), size, size // 2, alpha, beta, k, precision)


def local_response_norm_grad(
    x: Tensor, dy: Tensor, dx: Tensor, *,
    size: int, alpha: float, beta: float, k: float, precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx of `local_response_norm` from x and dy. dx must be neither x nor dy."""
    _launch(_lrn_grad_kernel, (x, dy, dx), size, size - 1, alpha, beta, k, precision)


def _window_sum(values: Tensor, before: int, after: int) -> Tensor:
    """Sums over the channels c - before .. c + after."""
    return functional.pad(values, (before, after)).unfold(-1, before + after + 1, 1).sum(-1)


def _scale_of(x: Tensor, size: int, alpha: float, k: float) -> Tensor:
    return k + alpha / size * _window_sum(x * x, size // 2, (size - 1) // 2)


def local_response_norm_reference(
    x: Tensor, y: Tensor, *, size: int, alpha: float, beta: float, k: float, precision: str = "ieee"
) -> None:
    """Computes `local_response_norm` in torch."""
    wide = x.float()
    normed = wide * _scale_of(wide, size, alpha, k).pow(-beta)
    y.copy_(stored_reference(normed, y.dtype, precision))


def local_response_norm_grad_reference(
    x: Tensor, dy: Tensor, dx: Tensor, *,
    size: int, alpha: float, beta: float, k: float, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `local_response_norm_grad` in torch."""
    wide, upper = x.float(), dy.float()
    scale = _scale_of(wide, size, alpha, k)
    products = _window_sum(upper * wide * scale.pow(-beta - 1), (size - 1) // 2, size // 2)
    gradient = upper * scale.pow(-beta) - 2 * alpha / size * beta * wide * products
    dx.copy_(stored_reference(gradient, dx.dtype, precision))
