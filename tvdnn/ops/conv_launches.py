"""Launches of convolutions: of their packed weights, products, sums and un-pooled gradients."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from ..graph import POOL_2X2
from .bias_rounding import run_round
from .conv_sizes import GEOMETRY
from .operator import Launch
from .optimizer import run_fused_update
from .remade_maps import made_by_of


def settings_of(a: Launch) -> dict[str, Any]:
    """Geometry and precision. Rows above stand for rows of padding."""
    settings = a.settings(*GEOMETRY)
    height, width = settings["padding"]
    return settings | {"padding": (height - a.beside[0], width), "precision": a.precision}


def storing_of(a: Launch) -> dict[str, Any]:
    """The same, with the precision of the products that read the result."""
    return settings_of(a) | {"out_precision": a.stored}


def spreading_of(a: Launch) -> dict[str, Any]:
    """The same of a launch from the smaller map, whose first row is met at a row of padding."""
    (height, width), (stride, _) = a.attrs["padding"], a.attrs["stride"]
    return storing_of(a) | {"padding": (height + stride * a.beside[0], width)}


def filter_of(a: Launch) -> torch.Tensor:
    """The weight [K, C/g, R, S], of which R, or R and S, may be left out where they are 1."""
    weight = a.weight
    for _ in range(4 - weight.dim()):
        weight = weight.unsqueeze(2)
    return weight


def _run_pack(kernel: str, a: Launch) -> None:
    settings = a.settings("groups") | {"precision": a.stored}
    getattr(a.kernels, kernel)(filter_of(a), a.writes[0], **settings)


def run_forward(a: Launch, *, relu: bool = False) -> None:
    y, *moments = a.writes
    left = {"moments": moments[0], "cells": a.attrs["cells"]} if moments else {}
    left |= {"made_by": made_by_of(a, a.params[1:])} if "maker" in a.attrs else {}
    a.kernels.conv2d(*a.reads[:2], a.params[0], y, relu=relu, **left, **storing_of(a))


def run_forward_relu_max_pool2d(a: Launch) -> None:
    x, packed = a.reads
    a.kernels.conv2d_max_pool(x, packed, a.params[0], *a.writes, relu=True, **storing_of(a))


def run_unpool(a: Launch) -> None:
    a.kernels.max_unpool2d(*a.reads, a.writes[0], **POOL_2X2)


def _run_grad_input(a: Launch) -> None:
    dy, packed, *mask = a.reads
    dx, *sums = a.writes
    by = {"mask": mask[0] if mask else None, "sums": sums[0] if sums else None}
    a.kernels.conv2d_grad_input(dy, packed, dx, **by, **spreading_of(a))


def _run_grad_last(a: Launch) -> None:
    precisions = {"precision": a.precision, "out_precision": a.stored}
    a.kernels.conv2d_grad_last(*a.reads, *a.writes, **precisions)


def _run_grad_weight(a: Launch) -> None:
    """The sums over both maps. Their plan counts no rows beside a row tile of the larger map."""
    small, large, *_ = a.reads
    own = large.shape[1] - sum(a.beside)
    settings = settings_of(a) | {"own_rows": own, "first": a.start == 0}
    settings["batch"] = a.attrs.get("batch", 0)
    settings |= {"made_by": made_by_of(a, a.params)} if "maker" in a.attrs else {}
    a.kernels.conv2d_grad_weight(large, small, a.writes[0], **settings)


def _run_grad_bias(a: Launch) -> None:
    rows, (partials, *sums) = a.reads[0], a.writes
    if sums:
        a.kernels.sum_cells(rows, sums[0])
        rows = sums[0]
    a.kernels.conv2d_grad_bias(rows, partials, first=a.start == 0, **a.settings("cell"))


LAUNCHES: Mapping[str, Callable[[Launch], None]] = {
    "pack": partial(_run_pack, "pack_weight"),
    "forward": run_forward,
    "pack_grad_input": partial(_run_pack, "pack_weight_grad_input"),
    "grad_weight": _run_grad_weight,
    "grad_bias": _run_grad_bias,
    "round": run_round,
    "update": run_fused_update,
    "grad_input": _run_grad_input,
    "grad_last": _run_grad_last,
}
