"""What the plan of a convolution's kernel depends on."""

from typing import Any, Final

from ..graph import Op
from ..kernels.conv.tiles import Pair
from .builder import Builder
from .operator import TORCH_DTYPES

GEOMETRY: Final = ("stride", "padding", "dilation", "groups")


def filter_shape(b: Builder, op: Op) -> tuple[int, int, int, int]:
    """[K, C/g, R, S], with R or S = 1 where the weight lacks them."""
    k, c, *taps = b.param_shape(op.params[0])
    r, s = (1, 1, *taps)[-2:]
    return k, c, r, s


def sides_of(b: Builder, name: str) -> Pair:
    """Height and width of a map by the name of its buffer, range or view."""
    height, width = b.buffers[name].shape[1:3]
    return height, width


def plan_settings(b: Builder, op: Op) -> dict[str, Any]:
    """Geometry, type and precision."""
    settings = {name: op.attrs[name] for name in GEOMETRY}
    return settings | {"dtype": TORCH_DTYPES[b.dtype], "precision": b.precision}
