"""Normalizations and cross-entropy written out, to measure the rounding inside."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from torch import Tensor
from torch.nn import functional


def written_out(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Tensor | None:
    """The result of a normalization or of cross-entropy, by elementary operations.

    None for any other function, and for a normalization by given statistics.
    """
    if function not in WRITTEN_OUT:
        return None
    given = signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    return WRITTEN_OUT[function](given.arguments)


def _batch_norm(given: Mapping[str, Any]) -> Tensor | None:
    x = given["input"]
    own = given["training"] or given["running_mean"] is None
    return _by_channel(x, (0, *range(2, x.dim())), given) if own else None


def _instance_norm(given: Mapping[str, Any]) -> Tensor | None:
    x = given["input"]
    own = given["use_input_stats"] and x.dim() > 2
    return _by_channel(x, tuple(range(2, x.dim())), given) if own else None


def _group_norm(given: Mapping[str, Any]) -> Tensor:
    x = given["input"]
    groups = x.reshape(x.shape[0], given["num_groups"], -1)
    return _scaled(_normalized(groups, (2,), given["eps"]).reshape(x.shape), given, 1)


def _layer_norm(given: Mapping[str, Any]) -> Tensor:
    x, count = given["input"], len(given["normalized_shape"])
    return _scaled(_normalized(x, tuple(range(-count, 0)), given["eps"]), given, x.dim() - count)


def _cross_entropy(given: Mapping[str, Any]) -> Tensor | None:
    """Cross-entropy of logits [N, C, ...] and classes. The loss of one class is rounding alone."""
    x, target, smoothing = given["input"], given["target"], given["label_smoothing"]
    weight, ignored, reduction = given["weight"], given["ignore_index"], given["reduction"]
    if target.is_floating_point() or x.dim() < 2:
        return None
    shares = x - x.logsumexp(1, keepdim=True)
    loss = functional.nll_loss(shares, target, weight, None, ignored, None, reduction)
    if not smoothing:
        return loss
    counts = target != ignored
    weights = x.new_ones(x.shape[1]) if weight is None else weight
    spread = -(shares * _along(weights, 1, x.dim())).sum(1) * counts
    if reduction == "mean":
        spread = spread.sum() / (weights[target.where(counts, 0)] * counts).sum()
    elif reduction == "sum":
        spread = spread.sum()
    return (1 - smoothing) * loss + smoothing / x.shape[1] * spread


WRITTEN_OUT: Mapping[Callable[..., Any], Callable[[Mapping[str, Any]], Tensor | None]] = {
    functional.batch_norm: _batch_norm,
    functional.instance_norm: _instance_norm,
    functional.group_norm: _group_norm,
    functional.layer_norm: _layer_norm,
    functional.cross_entropy: _cross_entropy,
}


def _by_channel(x: Tensor, dims: tuple[int, ...], given: Mapping[str, Any]) -> Tensor:
    return _scaled(_normalized(x, dims, given["eps"]), given, 1)


def _normalized(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    off = x - x.mean(dims, keepdim=True)
    return off * (off.square().mean(dims, keepdim=True) + eps).rsqrt()


def _scaled(values: Tensor, given: Mapping[str, Any], dim: int) -> Tensor:
    """Times the weight plus the bias, whose first dimension is `dim` of the values'."""
    weight, bias = given["weight"], given["bias"]
    if weight is not None:
        values = values * _along(weight, dim, values.dim())
    return values if bias is None else values + _along(bias, dim, values.dim())


def _along(param: Tensor, dim: int, dims: int) -> Tensor:
    return param.reshape(*param.shape, *(1,) * (dims - dim - param.dim()))
