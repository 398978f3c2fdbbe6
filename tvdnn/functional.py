"""Functions over torch alone that layers, translators of torch's calls and the tracer share."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, distributed
from torch.nn import SyncBatchNorm, functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import handle_torch_function, has_torch_function

from .errors import InputError

Ints = int | list[int] | tuple[int, ...]
CONVOLUTIONS: Final = (functional.conv1d, functional.conv2d)


def in_row(value: Ints, other: int) -> tuple[int, int]:
    """A setting of rows [N, C, L] for maps of one row; `other` is that of their height."""
    return other, value if isinstance(value, int) else int(value[0])


def pair(value: Ints) -> tuple[int, int]:
    """A setting of height and width; one number stands for both."""
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


def convolution(
    kernel: tuple[int, int], stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> dict[str, Any]:
    """The settings of a convolution's op."""
    sides = {"stride": pair(stride), "padding": pair(padding), "dilation": pair(dilation)}
    return {"kernel": kernel, **sides, "groups": groups}


def on_meta(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function of torch's makes of tensors of the meta device.

    Raises RuntimeError for filters larger than their map, which torch 2.11 refuses of data alone.
    """
    value = function(*args, **kwargs)
    if function in CONVOLUTIONS and 0 in value.shape[1:]:
        shape = tuple(value.shape)
        raise RuntimeError(
            f"filters are larger than their map: the output would have shape {shape}"
        )
    return value


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
    synchronized: bool = False,
) -> Tensor:
    """What a layer asks of torch's function, which does not know the number of batches.

    Without a momentum the running statistics become the mean over all batches. Where
    `synchronized`, a planned step of several processes takes the statistics of all of them.
    """
    state, affine = (running_mean, running_var), (weight, bias)
    if has_torch_function((x,)):
        given = (x, *state, *affine, training, momentum, eps, num_batches_tracked, synchronized)
        handle: Any = handle_torch_function
        result: Tensor = handle(counted_batch_norm, (x,), *given)
        return result
    if num_batches_tracked is not None:
        num_batches_tracked += 1
        if momentum is None and not x.is_meta:
            momentum = 1.0 / float(num_batches_tracked)
    if synchronized and x.is_meta and x.numel() == x.shape[1] and _are_several():
        return torch.empty_like(x)  # torch refuses one value a channel of one process alone
    return functional.batch_norm(x, *state, *affine, training, momentum or 0.0, eps)


def _are_several() -> bool:
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and (distributed.get_world_size() > 1)
    )


def batch_norm_arguments(layer: _BatchNorm) -> tuple[Any, ...]:
    """What `counted_batch_norm` takes behind its input, for torch's layer in its mode."""
    recalls = not layer.training and layer.running_mean is not None
    tracks = layer.training and layer.track_running_stats
    running = (layer.running_mean, layer.running_var) if recalls or tracks else (None, None)
    count = layer.num_batches_tracked if tracks else None
    momentum = 0.0 if layer.momentum is None and count is None else layer.momentum
    together = isinstance(layer, SyncBatchNorm) and layer.training
    return *running, layer.weight, layer.bias, not recalls, momentum, layer.eps, count, together


def normalize_batch(layer: _BatchNorm, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
    """What torch's batch normalization layer computes and tracks, in its mode."""
    return counted_batch_norm(input, *batch_norm_arguments(layer))


def stochastic_depth(x: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    """`x` of which samples, or by mode "batch" all, are dropped, by torch's own functions."""
    if has_torch_function((x,)):
        handle: Any = handle_torch_function
        result: Tensor = handle(stochastic_depth, (x,), x, p, mode, training)
        return result
    if not training or p == 0:
        return x
    shape = (len(x) if mode == "row" else 1, *(1,) * (x.dim() - 1))
    kept = (torch.rand(shape, device=x.device) >= p).to(x.dtype)
    return x * (kept / (1 - p) if p < 1 else kept)


def random_map(
    x: Tensor,
    size: tuple[int, ...],
    distribution: str,
    p: float = 0.5,
    scale: float = 1.0,
    shift: float = 0.0,
) -> Tensor:
    """A map of random numbers beside `x`, of as many samples, as an op of a plan draws them."""
    if has_torch_function((x,)):
        handle: Any = handle_torch_function
        given = (x, size, distribution, p, scale, shift)
        result: Tensor = handle(random_map, (x,), *given)
        return result
    if not x.is_meta or size[0] != len(x):
        raise InputError(f"random numbers of {size} beside a map of {len(x)} samples")
    return x.new_empty(size)


def drop_branch(layer: torch.nn.Module, *given: Tensor, **named: Tensor) -> Tensor:
    """What torchvision's StochasticDepth, or timm's DropPath, makes of its input in its mode.

    The one calls its input `input`, the other `x`.
    """
    (x,) = (*given, *named.values())
    settings = vars(layer)
    if "drop_prob" in settings and not settings["scale_by_keep"]:
        raise InputError("DropPath without scale_by_keep is not supported; set it")
    p, mode = settings.get("drop_prob", settings.get("p")), settings.get("mode", "row")
    return stochastic_depth(x, p or 0.0, mode, layer.training)
