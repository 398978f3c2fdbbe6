"""Convolution over NHWC maps: launchers and references of the forward pass and the data gradient.

Weights come packed (conv_pack.py). The kernels are in conv_pointer.py, for every shape, and in
conv_tma.py, for maps whose channels suit tensor descriptors. Which of them runs, its tile and the
order of its sums depend on every size but the number of samples, so that a sample's result has the
same bits in whatever run it is computed. `precision` is "ieee" or "tf32", for float32 maps.
"""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

import torch
import triton
from torch import Tensor
from torch.nn.functional import conv2d as torch_conv2d
from torch.nn.grad import conv2d_input
from triton.tools.tensor_descriptor import TensorDescriptor

from .conv_grad_bias import side_of, sum_cells, sum_cells_reference
from .conv_joined import conv_joined_kernel
from .conv_pointer import conv_kernel
from .conv_specialized import conv_specialized_kernel
from .conv_tiles import (
    FEW_CHANNELS,
    Box,
    Filter,
    Pair,
    Tile,
    box_of,
    box_tile,
    has_descriptors,
    joined_tile,
    part_of,
    pointer_tile,
    shares_rows,
    specialized_tile,
    suits_descriptors,
    suits_specialized,
)
from .conv_tma import conv_box_kernel
from .device import num_sms
from .hopper import swizzled
from .rounding import stored_reference


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What is done with the sums before they are stored."""

    bias: Tensor | None = None
    mask: Tensor | None = None
    relu: bool = False
    codes: Tensor | None = None  # with it, windows 2x2 leave their maximum
    sums: Tensor | None = None  # of the cells of what is stored


@dataclass(frozen=True, slots=True)
class Weights:
    """A packed filter as rows, one an output channel, with the elements between its taps."""

    rows: Tensor
    strides: Pair


def weights_of(packed: Tensor, first: Pair = (0, 0), step: Pair = (1, 1)) -> Weights:
    """Those of every `step`th tap of packed [K, R, S, C] from `first` on."""
    _, _, size_s, channels = packed.shape
    begin = (first[0] * size_s + first[1]) * channels
    return Weights(packed.flatten(1)[:, begin:], (step[0] * size_s * channels, step[1] * channels))


def conv2d(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str, relu: bool = False,
) -> None:  # fmt: skip
    """y [N, P, Q, K] from x [N, H, W, C], packed [K, R, S, C/g] and bias, float32 [K] or None.

    With `relu` negative outputs are zero.
    """
    if y.numel() == 0:
        return
    taps = _forward_filter(packed, stride, padding, dilation, groups)
    _launch_forward(x, packed, y, taps, Epilogue(bias, relu=relu), precision)


def conv2d_max_pool(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, codes: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str, relu: bool = True,
) -> None:  # fmt: skip
    """Maxima y [N, P//2, Q//2, K] of the windows 2x2, at stride 2, of what `conv2d` gives.

    codes, uint8 [N, P//2, Q//2, K//4], say where they lie: bits 2i and 2i+1 of byte j hold, for
    channel 4j+i, twice the row plus the column of the first maximum, or of the last NaN. K/g must
    be a multiple of 4.
    """
    if y.numel() == 0:
        return
    taps = _forward_filter(packed, stride, padding, dilation, groups)
    assert taps.out_channels % 4 == 0, f"{taps.out_channels} channels of a group fill no bytes"
    _launch_forward(x, packed, y, taps, Epilogue(bias, relu=relu, codes=codes), precision)


def conv2d_grad_input(
    dy: Tensor, packed: Tensor, dx: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    bias: Tensor | None = None, mask: Tensor | None = None, sums: Tensor | None = None,
) -> None:  # fmt: skip
    """Gradient dx [N, H, W, C] from dy [N, P, Q, K] and packed [C, R, S, K/g], the filter turned.

    It is a convolution of dy spread out by the stride, and with `bias`, float32 [C], a transposed
    convolution; dx may then have rows and columns that no window reached. Where `mask`, a map of
    dx's shape and type, is zero or below, dx is zero: the gradient of a ReLU whose output is the
    mask. `sums` are those that `sum_cells` makes of dx.
    """
    if dx.numel() == 0:
        return
    in_channels, size_r, size_s, out_channels = packed.shape
    turned = (dilation[0] * (size_r - 1) - padding[0], dilation[1] * (size_s - 1) - padding[1])
    taps = Filter(
        (size_r, size_s), (1, 1), turned, dilation, groups, out_channels, in_channels // groups
    )
    epilogue = Epilogue(bias, mask=mask, sums=sums)
    if not _suits_box(dy, dx, taps, precision) or not _has_phases(taps, stride, epilogue):
        _launch_pointer(dy, packed, dx, taps, stride, epilogue, precision)
        _sum_apart(dx, epilogue)
    elif stride == (1, 1):
        _launch_box(dy, weights_of(packed), dx, taps, epilogue, precision)
    else:
        _launch_phases(dy, packed, dx, taps, stride, epilogue, precision)
        _sum_apart(dx, epilogue)


def _forward_filter(
    packed: Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Filter:
    out_channels, size_r, size_s, in_channels = packed.shape
    return Filter(
        (size_r, size_s), stride, padding, dilation, groups, in_channels, out_channels // groups
    )


# Which kernel


def _suits_joined(y: Tensor, taps: Filter, precision: str) -> bool:
    """Few channels, and an output that can leave by TMA."""
    few = taps.in_channels < FEW_CHANNELS and taps.groups == 1
    exact = y.dtype == torch.float32 and precision == "ieee"
    return few and not exact and has_descriptors(y)


def _suits_box(x: Tensor, y: Tensor, taps: Filter, precision: str) -> bool:
    few = taps.out_channels < 2 * FEW_CHANNELS
    return taps.stride == (1, 1) and not few and suits_descriptors(x, y, taps, precision)


# Launches


def _launch_forward(
    x: Tensor, packed: Tensor, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str
) -> None:
    read, box_taps = _at_stride_1(x, taps)
    if _suits_box(read, y, box_taps, precision):
        _launch_box(read, weights_of(packed), y, box_taps, epilogue, precision)
    elif _suits_halves(x, y, taps, epilogue, precision):
        box = _specialized_box(y, taps, epilogue)
        _launch_specialized(_halves(x), weights_of(packed), y, taps, epilogue, box)
    elif _suits_joined(y, taps, precision):
        _launch_joined(x, packed, y, taps, epilogue, precision)
    else:
        _launch_pointer(x, packed, y, taps, (1, 1), epilogue, precision)


def _at_stride_1(x: Tensor, taps: Filter) -> tuple[Tensor, Filter]:
    """The pixels that a single tap reads, as a map of their own; others' maps as they are."""
    if taps.size != (1, 1) or taps.padding != (0, 0):
        return x, taps
    return x[:, :: taps.stride[0], :: taps.stride[1]], replace(taps, stride=(1, 1))


def _suits_halves(x: Tensor, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str) -> bool:
    """Stride 2 over whole pairs of rows and columns, by specialised warps.

    128->128 @56, N = 256, bf16: 0.10 ms where pointers take 0.16.
    """
    even = x.shape[1] % 2 == 0 and x.shape[2] % 2 == 0
    if taps.stride != (2, 2) or not even or not suits_descriptors(x, y, taps, precision):
        return False
    box, pooled = _specialized_box(y, taps, epilogue), epilogue.codes is not None
    return taps.out_channels >= 2 * FEW_CHANNELS and suits_specialized(
        taps, x.dtype, box, pooled=pooled
    )


def _halves(x: Tensor) -> Tensor:
    """x with pairs of rows and of columns as axes of their own: [N, H/2, 2, W/2, 2 * C]."""
    samples, height, width, channels = x.shape
    return x.view(samples, height // 2, 2, width // 2, 2 * channels)


def _has_phases(taps: Filter, up: Pair, epilogue: Epilogue) -> bool:
    """Whether `_launch_phases` computes what dy spread out by `up` gives.

    A bias has nothing to be added to where no tap meets dy.
    """
    if up == (1, 1):
        return True
    meets = taps.size[0] >= up[0] and taps.size[1] >= up[1]
    return taps.dilation == (1, 1) and (meets or epilogue.bias is None)


def _launch_phases(
    dy: Tensor, packed: Tensor, dx: Tensor, taps: Filter, up: Pair, epilogue: Epilogue,
    precision: str,
) -> None:  # fmt: skip
    """Spread out by `up`, dy meets at the pixels of one phase only every `up`th tap.

    So these are a convolution of dy as it is; where no tap is left they are zero.
    """
    for phase in itertools.product(range(up[0]), range(up[1])):
        pixels = (slice(None), slice(phase[0], None, up[0]), slice(phase[1], None, up[1]))
        ahead = (taps.padding[0] - phase[0], taps.padding[1] - phase[1])
        first = (ahead[0] % up[0], ahead[1] % up[1])
        size = tuple(len(range(*args)) for args in zip(first, taps.size, up, strict=True))
        if dx[pixels].numel() == 0:
            continue
        if 0 in size:
            dx[pixels].zero_()
            continue
        met = replace(taps, size=size, padding=(ahead[0] // up[0], ahead[1] // up[1]))
        masked = None if epilogue.mask is None else epilogue.mask[pixels]
        weights = weights_of(packed, first, up)
        phase_epilogue = replace(epilogue, mask=masked, sums=None)
        _launch_box(dy, weights, dx[pixels], met, phase_epilogue, precision)


def _launch_pointer(
    x: Tensor, packed: Tensor, y: Tensor, taps: Filter, up: Pair, epilogue: Epilogue, precision: str
) -> None:
    """`up` spreads x out: the stride of the convolution whose data gradient this is."""
    num_samples, out_h, out_w = _summed_sides(y, epilogue)
    tile = pointer_tile(taps, x.dtype, precision, pooled=epilogue.codes is not None)
    few = taps.in_channels < FEW_CHANNELS
    pixels = num_samples * triton.cdiv(out_h, up[0]) * triton.cdiv(out_w, up[1])
    grid = (
        triton.cdiv(pixels, tile.pixels) * triton.cdiv(taps.out_channels, tile.out_channels),
        taps.groups * up[0] * up[1],
    )
    conv_kernel[grid](
        x, packed, epilogue.bias, epilogue.mask, y, epilogue.codes,
        num_samples, x.shape[1], x.shape[2], out_h, out_w,
        taps.in_channels, taps.out_channels, taps.groups, *taps.padding, *taps.dilation,
        R=taps.size[0], S=taps.size[1], STRIDE_H=taps.stride[0], STRIDE_W=taps.stride[1],
        UP_H=up[0], UP_W=up[1],
        STEP_H=up[0] // gcd(up[0], taps.dilation[0]), STEP_W=up[1] // gcd(up[1], taps.dilation[1]),
        **_flags(epilogue), FLATTEN=few, PRECISION=precision,
        BLOCK_P=tile.pixels, BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def _launch_box(
    x: Tensor, weights: Weights, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str
) -> None:
    pooled = epilogue.codes is not None
    one_by_one = taps.size == (1, 1) and taps.padding == (0, 0)
    dense = x.is_contiguous() and y.is_contiguous()
    if one_by_one and dense and not pooled and epilogue.sums is None:
        mask = None if epilogue.mask is None else _as_row(epilogue.mask)
        x, y, epilogue = _as_row(x), _as_row(y), replace(epilogue, mask=mask)
    box = _specialized_box(y, taps, epilogue)
    if suits_specialized(taps, x.dtype, box, pooled=pooled):
        _launch_specialized(x, weights, y, taps, epilogue, box)
    else:
        _launch_plain_box(x, weights, y, taps, epilogue, precision)
        _sum_apart(y, epilogue)


def _specialized_box(y: Tensor, taps: Filter, epilogue: Epilogue) -> Box:
    pixels = specialized_tile(taps, y.dtype).pixels
    return box_of(*_summed_sides(y, epilogue)[1:], pixels, 1 if epilogue.codes is None else 2)


def _cell_within(stored: list[int], y: Tensor, epilogue: Epilogue) -> int:
    """Side of the cells whose sums leave with stored boxes, each whole in one; 0 if none do."""
    cell = 0 if epilogue.sums is None else side_of(y, epilogue.sums)
    whole = cell > 0 and stored[1] % cell == 0 and stored[2] % cell == 0
    return cell if whole else 0


def _sum_apart(y: Tensor, epilogue: Epilogue) -> None:
    """Sum the cells of a map that its kernel has left no sums of."""
    if epilogue.sums is not None:
        sum_cells(y, epilogue.sums)


def _as_row(nhwc: Tensor) -> Tensor:
    """All pixels as one row of one sample."""
    return nhwc.view(1, 1, -1, nhwc.shape[3])


def _launch_specialized(
    x: Tensor, weights: Weights, y: Tensor, taps: Filter, epilogue: Epilogue, box: Box
) -> None:
    """x is [N, H, W, C], or its `_halves` at stride 2."""
    block = box if x.dim() == 4 else (*box[:2], 1, box[2])
    tile = specialized_tile(taps, x.dtype)
    shared = shares_rows(taps, box)
    stored = _stored_box(box, tile, epilogue.codes is not None)
    num_samples, height, width = _summed_sides(y, epilogue)
    num_tiles = _num_tiles((num_samples, height, width), box, taps, tile)
    cell = _cell_within(stored, y, epilogue)
    conv_specialized_kernel[(min(num_tiles, num_sms()),)](
        swizzled(x, [*block, tile.in_channels]),
        swizzled(x, [1, taps.size[0] - 1, box[2], tile.in_channels]) if shared else None,
        swizzled(weights.rows, [tile.out_channels, tile.in_channels]),
        epilogue.bias,
        None if epilogue.mask is None else swizzled(epilogue.mask, stored),
        swizzled(y, stored),
        epilogue.codes, epilogue.sums,
        num_samples, height, width, taps.in_channels, taps.out_channels,
        *taps.padding, *taps.dilation, *weights.strides,
        R=taps.size[0], S=taps.size[1], **_flags(epilogue), ROUND=y.dtype == torch.float32,
        CELL=cell, ROWS=taps.size[0] if shared else 1,
        BLOCK_N=box[0], BLOCK_H=box[1], BLOCK_W=box[2], BLOCK_K=tile.out_channels,
        STAGES=3 if shared else tile.num_stages, PACKED_STAGES=2 if shared else tile.num_stages,
        num_warps=tile.num_warps,
    )  # fmt: skip
    if cell == 0:
        _sum_apart(y, epilogue)


def _launch_plain_box(
    x: Tensor, weights: Weights, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str
) -> None:
    mask, pooled = epilogue.mask, epilogue.codes is not None
    tile = box_tile(taps, x.dtype, masked=mask is not None, pooled=pooled)
    num_samples, height, width = _summed_sides(y, epilogue)
    box = box_of(height, width, tile.pixels, 2 if pooled else 1)
    stored = _stored_box(box, tile, pooled)
    num_tiles = _num_tiles((num_samples, height, width), box, taps, tile)
    conv_box_kernel[(min(num_tiles, tile.residents * num_sms()),)](
        TensorDescriptor.from_tensor(x, [*box, tile.in_channels]),
        TensorDescriptor.from_tensor(weights.rows, [tile.out_channels, tile.in_channels]),
        epilogue.bias,
        None if mask is None else TensorDescriptor.from_tensor(mask, stored),
        TensorDescriptor.from_tensor(y, stored),
        epilogue.codes,
        num_samples, height, width, taps.in_channels, taps.out_channels,
        *taps.padding, *taps.dilation, *weights.strides,
        R=taps.size[0], S=taps.size[1], **_flags(epilogue), PRECISION=precision,
        BLOCK_N=box[0], BLOCK_H=box[1], BLOCK_W=box[2],
        BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        PARTS=tile.parts, STAGES=tile.num_stages, FLATTEN=tile.flatten, num_warps=tile.num_warps,
    )  # fmt: skip


def _launch_joined(
    x: Tensor, packed: Tensor, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str
) -> None:
    pooled = epilogue.codes is not None
    num_samples, height, width = _summed_sides(y, epilogue)
    tile = joined_tile(taps)
    box = box_of(height, width, tile.pixels, 2 if pooled else 1)
    conv_joined_kernel[(_num_tiles((num_samples, height, width), box, taps, tile),)](
        x, packed, epilogue.bias,
        TensorDescriptor.from_tensor(y, _stored_box(box, tile, pooled)),
        epilogue.codes,
        num_samples, x.shape[1], x.shape[2], height, width, taps.out_channels,
        *taps.padding, *taps.dilation,
        R=taps.size[0], S=taps.size[1], IN_C=taps.in_channels,
        STRIDE_H=taps.stride[0], STRIDE_W=taps.stride[1],
        HAS_BIAS=epilogue.bias is not None, RELU=epilogue.relu, POOL=pooled, PRECISION=precision,
        BLOCK_N=box[0], BLOCK_H=box[1], BLOCK_W=box[2],
        BLOCK_K=tile.out_channels, BLOCK_E=tile.in_channels, PARTS=tile.parts,
        num_warps=tile.num_warps,
    )  # fmt: skip


def _num_tiles(sides: tuple[int, int, int], box: Box, taps: Filter, tile: Tile) -> int:
    boxes = prod(triton.cdiv(side, step) for side, step in zip(sides, box, strict=True))
    return boxes * triton.cdiv(taps.out_channels, tile.out_channels)


def _stored_box(box: Box, tile: Tile, pooled: bool) -> list[int]:
    """The block by which a box of sums leaves."""
    if pooled:
        return [box[0], box[1] // 2, box[2] // 2, tile.out_channels]
    return [*part_of(box, tile.parts), tile.out_channels]


def _summed_sides(y: Tensor, epilogue: Epilogue) -> tuple[int, int, int]:
    """Samples, rows and columns of the sums that y is made of."""
    scale = 1 if epilogue.codes is None else 2
    return y.shape[0], scale * y.shape[1], scale * y.shape[2]


def _flags(epilogue: Epilogue) -> dict[str, bool]:
    return {
        "HAS_BIAS": epilogue.bias is not None,
        "HAS_MASK": epilogue.mask is not None,
        "RELU": epilogue.relu,
        "POOL": epilogue.codes is not None,
    }


# References


def conv2d_reference(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str, relu: bool = False,
) -> None:  # fmt: skip
    """Plain `conv2d`."""
    weight = _computed(packed).permute(0, 3, 1, 2)
    with rounding(precision):
        for part, out in _runs(x, y):
            result = torch_conv2d(
                _channels_first(part), weight, None, stride, padding, dilation, groups
            ).permute(0, 2, 3, 1)
            wide = result if bias is None else result.float() + bias
            out.copy_(stored_reference(wide, out.dtype, precision))
    if relu:
        y.relu_()


def conv2d_max_pool_reference(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, codes: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str, relu: bool = True,
) -> None:  # fmt: skip
    """Plain `conv2d_max_pool`, through the whole map."""
    num_samples, height, width, channels = y.shape
    reach = [step * (size - 1) + 1 for step, size in zip(dilation, packed.shape[1:3], strict=True)]
    sides = [(x.shape[i + 1] + 2 * padding[i] - reach[i]) // stride[i] + 1 for i in (0, 1)]
    whole = y.new_empty(num_samples, *sides, channels)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    conv2d_reference(x, packed, bias, whole, **settings, precision=precision, relu=relu)
    windows = whole[:, : 2 * height, : 2 * width].unflatten(1, (-1, 2)).unflatten(3, (-1, 2))
    values = windows.permute(0, 1, 3, 5, 2, 4).flatten(4)  # [N, P//2, Q//2, K, 4]
    y.copy_(values[..., 0])
    taps = torch.zeros(y.shape, dtype=torch.uint8, device=y.device)
    for tap, value in enumerate(values.unbind(-1)):
        replaces = (value > y) | value.isnan()
        y.copy_(torch.where(replaces, value, y))
        taps.masked_fill_(replaces, tap)
    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=y.device)
    codes.copy_((taps.unflatten(3, (-1, 4)) << places).sum(-1))


def conv2d_grad_input_reference(
    dy: Tensor, packed: Tensor, dx: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    bias: Tensor | None = None, mask: Tensor | None = None, sums: Tensor | None = None,
) -> None:  # fmt: skip
    """Plain `conv2d_grad_input`."""
    grouped = _computed(packed).unflatten(0, (groups, -1)).flip(2, 3)  # [g, C/g, R, S, K/g]
    weight = grouped.permute(0, 4, 1, 2, 3).flatten(0, 1)
    with rounding(precision):
        for part, out in _runs(dy, dx):
            size = (out.shape[0], out.shape[3], *out.shape[1:3])
            grad = _channels_first(part)
            result = conv2d_input(size, weight, grad, stride, padding, dilation, groups)
            result = result.permute(0, 2, 3, 1)
            wide = result if bias is None else result.float() + bias
            out.copy_(stored_reference(wide, out.dtype, precision))
    if mask is not None:
        dx.masked_fill_(mask <= 0, 0.0)
    if sums is not None:
        sum_cells_reference(dx, sums)


def _computed(tensor: Tensor) -> Tensor:
    """The tensor in the type that a reference computes in: float32, but bfloat16 on a GPU."""
    return tensor if tensor.is_cuda else tensor.float()


def _channels_first(nhwc: Tensor) -> Tensor:
    return _computed(nhwc).permute(0, 3, 1, 2)


def _runs(inputs: Tensor, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole maps on a GPU; on a CPU samples one by one, whose bits then depend on them alone."""
    if inputs.is_cuda:
        return iter([(inputs, outputs)] if len(inputs) else [])
    return zip(inputs.split(1), outputs.split(1), strict=True)


@contextlib.contextmanager
def rounding(precision: str) -> Iterator[None]:
    """Let cuDNN round float32 operands to TF32, or not."""
    rounded = precision == "tf32"
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=rounded):
        yield
