"""Weight gradients of few channels: the windows of all filter rows are one axis of the products.

A filter of few channels makes narrow products, and loading the map again for every tap takes longer
than all of them. Here a program loads the windows of all rows that its columns belong to.
"""

from typing import Final

import triton
import triton.language as tl

from ...language.rounding import ended
from ..row_windows import load_windows, place_windows, size_of_sample
from .program_steps import add_products, share_of, steps_of

SIZES: Final = (
    "first", "num_samples", "out_h", "out_w", "unit", "splits", "range_start",
)  # fmt: skip


@triton.jit
def _next_box(
    n, h, w, left, home, n_0, h_0, w_0, out_h, out_w, unit, share,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The box of a split behind (n, h, w), in the same unit or, after `share` boxes, the next."""
    w += BLOCK_W
    h = tl.where(w < out_w, h, h + BLOCK_H)
    w = tl.where(w < out_w, w, 0)
    n = tl.where(h < out_h, n, n + BLOCK_N)
    h = tl.where(h < out_h, h, 0)
    left -= 1
    home = tl.where(left == 0, home + unit, home)
    n = tl.where(left == 0, home + n_0, n)
    h = tl.where(left == 0, h_0, h)
    w = tl.where(left == 0, w_0, w)
    return n, h, w, tl.where(left == 0, share, left), home


@triton.jit
def _load_dy(
    dy, n, h, w, first_uk, sample, row, column, inside, uk, out_h, out_w,
    OUT_C: tl.constexpr, PITCH: tl.constexpr, OUTPUTS: tl.constexpr, IS_BOX: tl.constexpr,
):  # fmt: skip
    """dy [P, BLOCK_K] of a box of groups of outputs, by a descriptor if IS_BOX."""
    if IS_BOX:
        grad = dy.load([n, h, w, first_uk]).reshape(sample.shape[0], uk.shape[0])
    else:
        dy_ptr = dy + ((n.to(tl.int64) * out_h + h) * out_w + w) * (OUTPUTS * PITCH)
        offs = ((sample * out_h + row) * out_w + column) * (OUTPUTS * PITCH)
        offs_k = uk if PITCH == OUT_C else uk // OUT_C * PITCH + uk % OUT_C
        mask = inside[:, None] & (uk < OUTPUTS * OUT_C)[None, :]
        grad = tl.load(dy_ptr + (offs[:, None] + offs_k[None, :]), mask, other=0.0)
    return grad


@triton.jit
def _sums_at(
    partials_ptr, uk, e, OUT_C: tl.constexpr, C: tl.constexpr,
    OWN_OUT_C: tl.constexpr, OWN_C: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, STRIDE_W: tl.constexpr, LEAD: tl.constexpr,
    E_ROW: tl.constexpr, OUTPUTS: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """Pointers to the sums of outputs' channels and elements, and which products are sums.

    An element of a window is no tap of those of the outputs that lie too far from it. Channels
    behind the own ones have no sums. Outputs lie whole pixels apart, so that an offset is the sum
    of one for each axis: with divisions for each product a kernel took 3 s to compile.
    """
    output, k = uk // OUT_C, uk % OUT_C
    row = e // E_ROW
    place = e - row * E_ROW - LEAD  # of an output's own element if it is behind `shift`
    column = place // C
    shift, own_shift = output * (STRIDE_W * C), output * (STRIDE_W * OWN_C)
    of_k = (output * OWN_OUT_C + k) * (R * S * OWN_C) - own_shift
    of_e = row * (S * OWN_C) + place - column * (C - OWN_C)
    has_k = (uk < OUTPUTS * OUT_C) & (k < OWN_OUT_C)
    has_e = (e < R * E_ROW) & (place - column * C < OWN_C)
    if SWAP:
        tap, offs = place[:, None] - shift[None, :], of_e[:, None] + of_k[None, :]
        mask = has_e[:, None] & has_k[None, :]
    else:
        tap, offs = place[None, :] - shift[:, None], of_e[None, :] + of_k[:, None]
        mask = has_e[None, :] & has_k[:, None]
    return partials_ptr + offs, mask & (tap >= 0) & (tap < S * C)


@triton.jit(do_not_specialize=SIZES)
def grad_weight_windows_kernel(
    x_ptr, dy, partials_ptr, geometry, first, num_samples, out_h, out_w, unit, splits, range_start,
    R: tl.constexpr, S: tl.constexpr, C: tl.constexpr, STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr, OUTPUTS: tl.constexpr, LEAD: tl.constexpr, E_ROW: tl.constexpr,
    V: tl.constexpr, VC: tl.constexpr, OUT_C: tl.constexpr, OWN_C: tl.constexpr,
    OWN_OUT_C: tl.constexpr, PITCH: tl.constexpr, DY_PITCH: tl.constexpr,
    DY_IS_BOX: tl.constexpr, SWAP: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """A step is a box of groups of OUTPUTS adjacent pixels of a row; out_w counts such groups.

    Products are of the channels of a group's outputs by elements, with SWAP of these by those. Each
    output has sums of its own, which are adjacent splits. Of padded maps all channels are summed,
    and sums of the own ones are stored.
    """
    GROUPS: tl.constexpr = BLOCK_N * BLOCK_H * BLOCK_W
    TILES_E: tl.constexpr = (R * E_ROW + BLOCK_E - 1) // BLOCK_E
    TILES_K: tl.constexpr = (OUTPUTS * OUT_C + BLOCK_K - 1) // BLOCK_K
    offs_e = tl.program_id(0) % TILES_E * BLOCK_E + tl.arange(0, BLOCK_E)
    first_uk = tl.program_id(0) // TILES_E % TILES_K * BLOCK_K
    uk = first_uk + tl.arange(0, BLOCK_K)
    split = tl.program_id(0) // (TILES_E * TILES_K)
    partials_ptr += split.to(tl.int64) * (OUTPUTS * OWN_OUT_C * R * S * OWN_C)
    acc = tl.zeros((BLOCK_E, BLOCK_K) if SWAP else (BLOCK_K, BLOCK_E), tl.float32)
    if first == 0:
        sum_ptrs, mask = _sums_at(
            partials_ptr, uk, offs_e, OUT_C, C, OWN_OUT_C, OWN_C, R, S, STRIDE_W, LEAD, E_ROW,
            OUTPUTS, SWAP,
        )  # fmt: skip
        acc = tl.load(sum_ptrs, mask, other=0.0)
    tiles_h, tiles_w = tl.cdiv(out_h, BLOCK_H), tl.cdiv(out_w, BLOCK_W)
    boxes = tiles_h * tiles_w
    start, share = share_of(range_start + split, splits, unit // BLOCK_N * boxes)
    last = tl.cdiv(num_samples % unit, BLOCK_N) * boxes
    n_0, h_0 = start // boxes * BLOCK_N, start // tiles_w % tiles_h * BLOCK_H
    w_0 = start % tiles_w * BLOCK_W
    n, h, w, left, home = n_0, h_0, w_0, share, n_0 * 0
    # Asynchronous loads of 16 bytes pass by the L1 cache unless told otherwise. In float32 windows
    # of the rows of a box are up to nine times its bytes.
    CACHED: tl.constexpr = ".ca" if x_ptr.dtype.element_ty == tl.float32 else ""
    group = tl.arange(0, GROUPS)
    sample, row, column = group // (BLOCK_H * BLOCK_W), group // BLOCK_W % BLOCK_H, group % BLOCK_W
    for _ in tl.range(0, steps_of(start, share, unit, num_samples, last), num_stages=STAGES):
        inside = (n + sample < num_samples) & (h + row < out_h) & (w + column < out_w)
        grad = _load_dy(
            dy, n, h, w, first_uk, sample, row, column, inside, uk, out_h, out_w,
            OUT_C, DY_PITCH, OUTPUTS, DY_IS_BOX,
        )  # fmt: skip
        in_row, place, offs = place_windows(
            inside, sample, h + row, w + column, geometry, PITCH, C, STRIDE_H, STRIDE_W, OUTPUTS, V
        )
        x = load_windows(
            x_ptr + n.to(tl.int64) * size_of_sample(geometry, PITCH, C, V), in_row, place, offs,
            offs_e, geometry, PITCH, C, R, LEAD, E_ROW, V, VC, CACHED,
        )  # fmt: skip
        acc = ended(add_products(acc, grad, x, SWAP, "tf32"))
        n, h, w, left, home = _next_box(
            n, h, w, left, home, n_0, h_0, w_0, out_h, out_w, unit, share,
            BLOCK_N, BLOCK_H, BLOCK_W,
        )  # fmt: skip
    sum_ptrs, mask = _sums_at(
        partials_ptr, uk, offs_e, OUT_C, C, OWN_OUT_C, OWN_C, R, S, STRIDE_W, LEAD, E_ROW,
        OUTPUTS, SWAP,
    )  # fmt: skip
    tl.store(sum_ptrs, acc, mask)
