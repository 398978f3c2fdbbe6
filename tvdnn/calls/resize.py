"""Calls of resizing, by nearest pixels or bilinear."""

from typing import Any

from ..errors import InputError
from .call import Call, Shape, Source, UnsupportedCallError, shape_of
from .reshape import as_rows, of_rows


def interpolate(out: Shape, x: Source, *args: Any, **kwargs: Any) -> Call:
    """What torch's Upsample calls."""
    if len(out) == 3:
        maps, settings = as_rows(x), _of_rows(*args, **kwargs)
        return of_rows(out, interpolate((*out[:2], 1, out[2]), maps, **settings))
    if len(out) != 4:
        raise UnsupportedCallError(f"interpolate of {len(out)} dimensions (it takes maps)")
    settings = resizing(out, shape_of(x), *args, **kwargs)
    same = out == shape_of(x) and settings["scales"] == (1, 1)
    return Call("view", (x,)) if same else Call("resize", (x,), (), settings)


def _of_rows(
    size: Any = None, scale_factor: Any = None, mode: str = "nearest", *rest: Any, **named: Any
) -> dict[str, Any]:
    """The settings of resized rows [N, C, L] for maps of one row."""
    names = ("align_corners", "recompute_scale_factor", "antialias")
    factor = scale_factor[0] if isinstance(scale_factor, (tuple, list)) else scale_factor
    factors = None if factor is None else (1.0, factor)
    modes = {"linear": "bilinear"}
    given = {"scale_factor": factors, "mode": modes.get(mode, mode)}
    return given | dict(zip(names, rest, strict=False)) | named


def resizing(
    out: Shape,
    source: Shape,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> dict[str, Any]:
    """The settings of a resizing of maps, as kernels/pointwise/resize.py has them."""
    if mode not in ("nearest", "bilinear") or antialias:
        blurred = " with antialias" if antialias else ""
        raise UnsupportedCallError(f"interpolate by {mode}{blurred} (by nearest or bilinear)")
    if 0 in out[2:]:
        raise InputError(f"interpolate makes maps {list(out)} without pixels of {list(source)}")
    sides = zip(source[2:], out[2:], strict=True)
    if align_corners:
        scales = [(side - 1) / (made - 1) if made > 1 else 0.0 for side, made in sides]
        return {"mode": "corners", "scales": tuple(scales)}
    scales = [side / made for side, made in sides]
    if scale_factor is not None and not recompute_scale_factor:
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * 2
        scales = [1 / factor for factor in factors]
    return {"mode": mode, "scales": tuple(scales)}
