"""SGD and AdamW from partial sums of a gradient. The gradient itself is never stored.

Partials are contiguous float32 [splits, K, R, S, C/g] for a parameter [K, C/g, R, S], or [splits,
*shape] for a parameter of one or two dimensions. They are added in index order, as `sum_partials`
adds them.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.cost import costing, updates
from ..reduce.partials import add_partials, filters_of, partial_tile, sum_partials_reference
from .math import Rule, adamw_rule, apply_update, sgd_rule
from .update import adamw_reference, momentum_states, sgd_reference

TILE: Final = (2048, 8192)  # elements of a program, and of partials in flight together, at most


@triton.jit(do_not_specialize=["num_partials", "tiles_c"])
def _update_partials_kernel(
    partials_ptr, param_ptr, states, control_ptr, num_partials, numel, channels, taps, tiles_c,
    stride_k, stride_c, stride_tap,
    ADAMW: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr, LOADS: tl.constexpr,
):  # fmt: skip
    """A program updates all taps of BLOCK_C channels of one output channel."""
    pid = tl.program_id(0)
    k = (pid // tiles_c).to(tl.int64)
    c = pid % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)[:, None]  # [BLOCK_C, 1]
    tap = tl.arange(0, BLOCK_T)[None, :]  # [1, BLOCK_T]
    mask = (c < channels) & (tap < taps)
    ptrs = partials_ptr + k * taps * channels + (tap * channels + c)
    grad = tl.zeros((BLOCK_C, BLOCK_T), tl.float32)
    grad = add_partials(grad, ptrs, mask, num_partials, numel, LOADS)
    offs = k * stride_k + (c.to(tl.int64) * stride_c + tap * stride_tap)
    apply_update(param_ptr, states, control_ptr, offs, mask, grad, ADAMW, NESTEROV, MAXIMIZE)


def _launch(
    param: Tensor, partials: Tensor, states: tuple[Tensor, ...], control: Tensor, rule: Rule
) -> None:
    assert all(state.stride() == param.stride() for state in states)
    if param.numel() == 0:
        return
    rows = filters_of(param, partials).flatten(2)
    channels = rows.shape[1]
    tile = partial_tile(*rows.shape, *TILE)
    tiles_c = triton.cdiv(channels, tile["BLOCK_C"])
    _update_partials_kernel[(rows.shape[0] * tiles_c,)](
        partials, param, states, control, partials.numel() // param.numel(), param.numel(),
        channels, rows.shape[2], tiles_c, *rows.stride(), **rule.constants(), **tile,
    )  # fmt: skip


@costing(updates(0, 2))
def sgd_partials(
    param: Tensor, partials: Tensor, momentum_buffer: Tensor | None, control: Tensor, *,
    nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    """`sgd` with the sum of the partials as gradient. Parameter and buffer share their strides."""
    states = momentum_states(momentum_buffer)
    _launch(param, partials, states, control, sgd_rule(nesterov, maximize))


@costing(updates(0, 2, 3))
def adamw_partials(
    param: Tensor, partials: Tensor, mean: Tensor, square: Tensor, control: Tensor, *,
    maximize: bool,
) -> None:  # fmt: skip
    """`adamw` by the sum of the partials as gradient. Parameter and states share their strides."""
    _launch(param, partials, (mean, square), control, adamw_rule(maximize))


def sgd_partials_reference(
    param: Tensor, partials: Tensor, momentum_buffer: Tensor | None, control: Tensor, *,
    nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    """Computes `sgd_partials` in torch."""
    options = {"nesterov": nesterov, "maximize": maximize}
    sgd_reference(param, _sum(partials, param), momentum_buffer, control, **options)


def adamw_partials_reference(
    param: Tensor, partials: Tensor, mean: Tensor, square: Tensor, control: Tensor, *,
    maximize: bool,
) -> None:  # fmt: skip
    """Computes `adamw_partials` in torch."""
    adamw_reference(param, _sum(partials, param), mean, square, control, maximize=maximize)


def _sum(partials: Tensor, param: Tensor) -> Tensor:
    grad = torch.empty_like(param)
    sum_partials_reference(partials, grad, first=True)
    return grad
