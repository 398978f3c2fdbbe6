"""Functions of torch's alone that layers, translators and the tracer share."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

Ints = int | list[int] | tuple[int, ...]


def in_row(value: Ints, other: int) -> tuple[int, int]:
    """A setting of rows [N, C, L] for maps of one row; `other` is that of their height."""
    return other, value if isinstance(value, int) else int(value[0])


def pair(value: Ints) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    height, width = value if len(value) == 2 else (value[0], value[0])
    return int(height), int(width)


def window(kernel_size: Ints, stride: Ints | None, padding: Ints) -> dict[str, Any]:
    """A pooling window; no stride means that windows do not overlap."""
    return {
        "kernel": pair(kernel_size),
        "stride": pair(stride or kernel_size),
        "padding": pair(padding),
    }


def straight_through(before: Tensor, values: Tensor) -> Tensor:
    """These values, with the gradient of what was there before."""
    return before + (values - before).detach()


def counted_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    num_batches_tracked: Tensor | None,
) -> Tensor:
    """What a layer asks of torch's function, which does not know the number of batches.

    Without a momentum the running statistics become the mean over all batches.
    """
    state, affine = (running_mean, running_var), (weight, bias)
    if has_torch_function((x,)):
        given = (x, *state, *affine, training, momentum, eps, num_batches_tracked)
        handle: Any = handle_torch_function
        result: Tensor = handle(counted_batch_norm, (x,), *given)
        return result
    if num_batches_tracked is not None:
        num_batches_tracked += 1
        if momentum is None and not x.is_meta:
            momentum = 1.0 / float(num_batches_tracked)
    return functional.batch_norm(x, *state, *affine, training, momentum or 0.0, eps)


def stochastic_depth(x: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    """Maps of which samples, or by mode "batch" all, are dropped, by torch's own functions."""
    if has_torch_function((x,)):
        handle: Any = handle_torch_function
        result: Tensor = handle(stochastic_depth, (x,), x, p, mode, training)
        return result
    if not training or p == 0:
        return x
    shape = (len(x) if mode == "row" else 1, *(1,) * (x.dim() - 1))
    kept = (torch.rand(shape, device=x.device) >= p).to(x.dtype)
    return x * (kept / (1 - p) if p < 1 else kept)
