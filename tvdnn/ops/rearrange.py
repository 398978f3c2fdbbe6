"""Copies of maps in another order of their dimensions' parts, and concatenations by copies."""

from collections.abc import Sequence

import torch

from ..graph import Op, Use
from .builder import Builder
from .concat import stack
from .operator import Launch, Operator
from .passes import forward, grad_apart
from .reshape_translator import pixel_shuffle, pixel_unshuffle


def join_backward(b: Builder, op: Op) -> None:
    """One pass makes the gradients of all inputs where they are wanted."""
    wanted = [index for index, name in enumerate(op.inputs) if b.needs_grad(name)]
    writes = tuple(Use(b.new_grad(op.inputs[index])) for index in wanted)
    reads = (Use(b.grad_of(op)),)
    b.add_pass(op, "grad_input", reads, writes, attrs={"wanted": tuple(wanted)})


def _run_rearrange(a: Launch) -> None:
    source, target = _seen(a, a.reads[0], a.writes[0])
    a.kernels.copy_strided(source, target, precision=a.stored)


def _run_rearrange_back(a: Launch) -> None:
    target, source = _seen(a, a.writes[0], a.reads[0])
    a.kernels.copy_strided(source, target, precision=a.stored)


def _seen(
    a: Launch, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The source in the copy's order, and the copy."""
    sizes, order = a.attrs["sizes"], a.attrs["order"]
    parts = x.view(len(x), *sizes).permute(0, *(1 + place for place in order))
    return parts, y.view(parts.shape)


def _run_join(a: Launch) -> None:
    places = _places(a, a.writes[0])
    for x, place in zip(a.reads, places, strict=True):
        a.kernels.copy_strided(x.view(place.shape), place, precision=a.stored)


def _run_join_back(a: Launch) -> None:
    places = _places(a, a.reads[0])
    for index, dx in zip(a.attrs["wanted"], a.writes, strict=True):
        a.kernels.copy_strided(places[index], dx.view(places[index].shape), precision=a.stored)


def _places(a: Launch, joined: torch.Tensor) -> Sequence[torch.Tensor]:
    """The part of the joined map that each input fills."""
    sizes, after = a.attrs["sizes"], a.attrs["after"]
    whole = joined.view(len(joined), -1, sum(sizes), after)
    return torch.split(whole, sizes, 2)


REARRANGE = Operator(
    "rearrange",
    forward,
    grad_apart,
    {"forward": _run_rearrange, "grad_input": _run_rearrange_back},
    functions={"pixel_shuffle": pixel_shuffle, "pixel_unshuffle": pixel_unshuffle},
    modules=("PixelShuffle", "PixelUnshuffle"),
    takes_rows=True,
    skippable=True,
)
JOIN = Operator(
    "join",
    forward,
    join_backward,
    {"forward": _run_join, "grad_input": _run_join_back},
    functions={"stack": stack},
    takes_rows=True,
)
