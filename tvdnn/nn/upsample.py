"""Upsampling and other resizing of maps over the kernels."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.resize import resizing
from ..ops.traced_op import UnsupportedCallError
from .conv import KNOWN_SHAPES
from .eager import checked, run, torchs_own


class Upsample(torch.nn.Upsample):
    """torch.nn.Upsample, run by tvdnn's kernels; by torch in modes but nearest and bilinear."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input) or input.dim() != 4 or input.numel() == 0:
            return super().forward(input)
        given = (self.mode, self.align_corners, self.recompute_scale_factor)
        known = _settings(input.shape, _key(self.size), _key(self.scale_factor), *given)
        if known is None:
            return super().forward(input)
        out, settings = known
        return run("resize", checked(input), attrs=settings, out=out)


def _key(sizes: Any) -> Any:
    return tuple(sizes) if isinstance(sizes, list) else sizes


@lru_cache(maxsize=KNOWN_SHAPES)
def _settings(x: torch.Size, *given: Any) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """The shape of the result in the kernels' order, and the op's settings; None by torch."""
    n, c, height, width = functional.interpolate(torch.empty(x, device="meta"), *given).shape
    try:
        return (n, height, width, c), resizing((n, c, height, width), tuple(x), *given)
    except UnsupportedCallError:
        return None
