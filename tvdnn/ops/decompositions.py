"""Functions of torch that the tracer follows as several calls: arithmetic, and poolings.

One returns NotImplemented for a call that it cannot follow.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import functional

from ..functional import Ints, in_row, pair, random_map
from .reshape_translator import rows_as_maps


def normalize(
    input: Tensor,  # noqa: A002 (torch's name)
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: None = None,
) -> Tensor:
    norms = torch.norm(input, p, dim, keepdim=True)
    return torch.div(input, norms.clamp_min(eps))


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Norms are at least `eps`, and have a gradient where they are smaller, too, as torch's."""

    def of_length_one(x: Tensor) -> Tensor:
        norms: Tensor = torch.norm(x, 2, dim, keepdim=True)
        return x / (norms + (norms.clamp_min(eps) - norms).detach())

    return torch.sum(of_length_one(x1) * of_length_one(x2), dim)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    distances: Tensor = torch.norm(x1 - x2 + eps, p, -1, keepdim=keepdim)
    return distances


def addcmul(
    input: Tensor,  # noqa: A002 (torch's name)
    tensor1: Tensor,
    tensor2: Tensor,
    *,
    value: float = 1,
    out: None = None,
) -> Tensor:
    return torch.add(input, tensor1 * tensor2, alpha=value)


def rsub(input: Tensor, other: Any, *, alpha: float = 1) -> Tensor:  # noqa: A002 (torch's name)
    """`other` less `alpha` times `input`."""
    return torch.add(other, input, alpha=-alpha)


def lerp(
    input: Tensor,  # noqa: A002 (torch's name)
    end: Tensor,
    weight: Any,
    *,
    out: None = None,
) -> Tensor:
    """The weighted mean from the nearer end, as torch computes it."""
    step = end - input
    if not isinstance(weight, (int, float)):
        return torch.add(input, step * weight)
    if abs(weight) < 0.5:
        return torch.add(input, step, alpha=weight)
    return torch.sub(end, step, alpha=1 - weight)


def in_rows(pool: Callable[..., Tensor], settings: str) -> Callable[..., Tensor]:
    """A pooling of maps as one of rows, whose settings have these names in torch's order."""

    def run(input: Tensor, *given: Any, **named: Any) -> Tensor:  # noqa: A002 (torch's name)
        of_rows = dict(zip(settings.split(), given, strict=False)) | named
        if not of_rows.get("stride", True):
            del of_rows["stride"]  # windows that do not overlap
        return pool(input.unsqueeze(2), **rows_as_maps(of_rows)).squeeze(2)

    return run


def adaptive_max_pool1d(
    input: Tensor,  # noqa: A002 (torch's name)
    output_size: Ints,
    return_indices: bool = False,
) -> Tensor:
    return _adaptive_maxima(input, 2, in_row(output_size, 1)[1])


def adaptive_max_pool2d(
    input: Tensor,  # noqa: A002 (torch's name)
    output_size: Any,
    return_indices: bool = False,
) -> Tensor:
    """Max pooling if all windows have one size; else columns are reduced first, then rows.

    The first maximum of a window, row by row, gets the gradient in both.
    """
    sides = tuple(input.shape[-2:])
    wanted = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * 2
    sizes = [side if size is None else size for side, size in zip(sides, wanted, strict=True)]
    if all(side % size == 0 for side, size in zip(sides, sizes, strict=True)):
        kernel = (sides[0] // sizes[0], sides[1] // sizes[1])
        return functional.max_pool2d(input, kernel, kernel)
    return _adaptive_maxima(_adaptive_maxima(input, 3, sizes[1]), 2, sizes[0])


def _adaptive_maxima(x: Tensor, dim: int, size: int) -> Tensor:
    """The largest elements of torch's adaptive windows along one dimension."""
    side = x.shape[dim]
    bounds = [(i * side // size, -(-(i + 1) * side // size)) for i in range(size)]
    windows = [x.narrow(dim, start, stop - start) for start, stop in bounds]
    return torch.cat([torch.max(each, dim, keepdim=True)[0] for each in windows], dim)


def lp_pool2d(
    input: Tensor,  # noqa: A002 (torch's name)
    norm_type: float,
    kernel_size: Ints,
    stride: Ints | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm of each window, as large as torch's: the mean times the window's size."""
    means = functional.avg_pool2d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    height, width = pair(kernel_size)
    return means.mul(height * width).pow(1 / norm_type)


def glu(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002 (torch's name)
    values, gates = input.chunk(2, dim)
    return values * torch.sigmoid(gates)


def repeat_interleave(
    input: Tensor,  # noqa: A002 (torch's name)
    repeats: Any = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Any:
    """The elements of a dimension, each as often, one behind the other."""
    dims = range(-input.dim(), input.dim())
    if type(repeats) is not int or repeats < 1 or not (dim is None or dim in dims):
        return NotImplemented
    size = input.numel() if dim is None else input.shape[dim]
    if output_size not in (None, size * repeats):
        return NotImplemented
    x, dim = (input.flatten(), 0) if dim is None else (input, dim % input.dim())
    sizes = [*x.shape[: dim + 1], repeats, *x.shape[dim + 1 :]]
    return x.unsqueeze(dim + 1).expand(sizes).flatten(dim, dim + 1).clone()


def broadcast_tensors(*tensors: Any) -> Any:
    if not all(
        isinstance(each, Proxy) for each in tensors
    ):  # calls on others would not be recorded
        return NotImplemented
    shape = torch.broadcast_shapes(*(tuple(each.shape) for each in tensors))
    return tuple(each.expand(shape) for each in tensors)


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Any:
    """A softmax of logits with noise of Gumbel's: Jang, Gu and Poole, 2017."""
    if hard:  # which takes the largest
        return NotImplemented
    waits = random_map(logits, tuple(logits.shape), "exponential")
    return torch.softmax((logits - waits.log()) / tau, dim)


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    functional.glu: glu,
    functional.gumbel_softmax: gumbel_softmax,
    functional.normalize: normalize,
    torch.cosine_similarity: cosine_similarity,
    torch.pairwise_distance: pairwise_distance,
    torch.addcmul: addcmul,
    torch.broadcast_tensors: broadcast_tensors,
    torch.rsub: rsub,
    torch.lerp: lerp,
    torch.repeat_interleave: repeat_interleave,
    **dict.fromkeys(
        (functional.max_pool1d, torch.max_pool1d),
        in_rows(functional.max_pool2d, "kernel_size stride padding dilation ceil_mode"),
    ),
    functional.avg_pool1d: in_rows(
        functional.avg_pool2d, "kernel_size stride padding ceil_mode count_include_pad"
    ),
    functional.adaptive_avg_pool1d: in_rows(functional.adaptive_avg_pool2d, "output_size"),
    functional.adaptive_max_pool1d: adaptive_max_pool1d,
    functional.adaptive_max_pool2d: adaptive_max_pool2d,
    functional.lp_pool1d: in_rows(lp_pool2d, "norm_type kernel_size stride ceil_mode"),
    functional.lp_pool2d: lp_pool2d,
}
