"""Resizing against torch's interpolation and its autograd, of ranges of wider maps too."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import (
    as_range,
    assert_repeatable,
    is_poisoned_beside,
    poisoned,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.kernels.pointwise import resize as kernels
from tvdnn.ops.resize import resizing

TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 4e-3}
ROUNDING = 4 * torch.finfo(torch.float32).eps  # of sums of four products of about 1
DTYPES = list(TOLERANCE)
NEAREST: dict[str, Any] = {"mode": "nearest"}
BILINEAR = {"mode": "bilinear", "align_corners": False}
CORNERS = {"mode": "bilinear", "align_corners": True}
SIZES: list[tuple[tuple[int, int, int, int], dict[str, Any]]] = [
    ((2, 2, 3, 16), {"scale_factor": 2}),
    ((1, 2, 3, 7), {"scale_factor": 3}),
    ((1, 2, 3, 33), {"scale_factor": (2, 4)}),
    ((1, 3, 4, 3), {"size": (7, 5)}),
    ((1, 4, 5, 8), {"scale_factor": 1.7}),
    ((1, 5, 7, 5), {"scale_factor": 0.6}),
    ((1, 5, 4, 4), {"size": (3, 1)}),
    ((2, 1, 1, 8), {"size": (3, 2)}),
    ((0, 2, 2, 4), {"scale_factor": 2}),
]
SEVERAL_ROWS: list[tuple[tuple[int, int, int, int], dict[str, Any]]] = [
    ((2, 9, 5, 8), {"scale_factor": 4}),
    ((1, 7, 6, 3), {"size": (31, 29)}),
    ((1, 9, 7, 4), {"size": (5, 3)}),
    ((2, 1, 3, 4), {"size": (9, 3)}),
]
SUFFIXES = ["", "_reference"]


def torchs(x: Tensor, given: dict[str, Any]) -> Tensor:
    """Torch's function, on maps [N, H, W, C]."""
    if not len(x):  # which torch refuses
        return torchs(x.new_empty(1, *x.shape[1:]), given)[:0]
    return functional.interpolate(x.permute(0, 3, 1, 2), **given).permute(0, 2, 3, 1)


def settings_of(x: Tensor, y: Tensor, given: dict[str, Any]) -> dict[str, Any]:
    out, source = ((n, c, h, w) for n, h, w, c in (y.shape, x.shape))
    return resizing(out, source, **given)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", [NEAREST, BILINEAR, CORNERS], ids=["nearest", "plain", "corners"])
@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_follows_torch(
    shape: tuple[int, int, int, int],
    size: dict[str, Any],
    mode: dict[str, Any],
    dtype: torch.dtype,
    suffix: str,
    generator: torch.Generator,
) -> None:
    resize, resize_grad = (getattr(kernels, name + suffix) for name in ("resize", "resize_grad"))
    x = randn(shape, dtype, generator)
    leaf = x.double().requires_grad_()
    exact = torchs(leaf, size | mode)
    settings = settings_of(x, exact, size | mode)
    y, dx = poisoned(exact.shape, dtype, x.device), poisoned_like(x)
    dy = randn(y.shape, dtype, generator)
    resize(x, y, **settings)
    assert rms_error(y, exact.detach()) <= TOLERANCE[dtype]
    resize_grad(dy, dx, **settings)
    if len(x):
        exact.backward(dy.double())
        assert leaf.grad is not None
        assert rms_error(dx, leaf.grad) <= TOLERANCE[dtype]


@pytest.mark.parametrize("mode", [NEAREST, BILINEAR, CORNERS], ids=["nearest", "plain", "corners"])
@pytest.mark.parametrize(("shape", "size"), SEVERAL_ROWS)
def test_bits_do_not_depend_on_the_rows_of_a_program(
    shape: tuple[int, int, int, int],
    size: dict[str, Any],
    mode: dict[str, Any],
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = randn(shape, torch.bfloat16, generator)
    made = torchs(x.double(), size | mode)
    dy, settings = randn(made.shape, x.dtype, generator), settings_of(x, made, size | mode)
    results = []
    for programs in (kernels.PROGRAMS, 0):
        monkeypatch.setattr(kernels, "PROGRAMS", programs)
        y, dx = poisoned_like(dy), poisoned_like(x)
        kernels.resize(x, y, **settings)
        kernels.resize_grad(dy, dx, **settings)
        assert y.isfinite().all()
        assert dx.isfinite().all()
        results.append((y, dx))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("mode", kernels.MODES)
@pytest.mark.parametrize("sides", [(3, 4), (1, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding(
    dtype: torch.dtype, sides: tuple[int, int], mode: str, generator: torch.Generator
) -> None:
    """NaN behind the channels reaches no result. It stays, unless it is in `padded` words."""
    x, dy = (randn((2, by * sides[0], by * sides[1], 21), dtype, generator) for by in (1, 8))
    settings = {"mode": mode, "scales": (0.125, 0.125)}
    for launch, read, like in ((kernels.resize, x, dy), (kernels.resize_grad, dy, x)):
        own, room, filled = poisoned_like(like), padded(like), padded(like)
        launch(read, own, **settings)
        launch(padded(read), room, **settings)
        launch(padded(read), filled, **settings, padded=True)
        for each in (room, filled):
            torch.testing.assert_close(each, own, rtol=0, atol=ROUNDING)
        assert is_poisoned_beside(room)
        if sides != (1, 1):
            behind = filled.as_strided((*like.shape[:3], 24), filled.stride())[..., 21:]
            assert not behind.any()


def padded(maps: Tensor) -> Tensor:
    return as_range(maps, before=0, after=-maps.shape[-1] % 8)


@pytest.mark.parametrize("size", range(1, 60, 7))
@pytest.mark.parametrize("mode", kernels.MODES)
def test_windows_hold_all_that_is_made_of_a_pixel(mode: str, size: int) -> None:
    """Each pixel's window holds the nonzero weights of the matrix, for every ratio of sides."""
    for out_size in (1, 2, size, 2 * size, 3 * size, 5 * size + 3, 97, 1023):
        whole = (out_size - 1, size - 1)
        scale = (whole[1] / whole[0] if whole[0] else 0.0) if mode == "corners" else size / out_size
        device = torch.device("cpu")
        weights, _ = kernels._matrices((size, 1), (out_size, 1), mode, (scale, 1.0), device)
        window = kernels._window(size, out_size, mode, scale)
        first = torch.floor(torch.arange(size) * window.inverse + window.offset)
        out, at = (weights > 1e-4).nonzero(as_tuple=True)
        assert (out >= first[at]).all()
        assert (out < first[at] + window.size).all()


def test_doubling_looks_at_nothing_in_vain() -> None:
    assert kernels._window(7, 14, "nearest", 0.5).size == 2
    assert kernels._window(7, 14, "bilinear", 0.5).size == 4


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ranges_of_wider_maps_and_rounding(suffix: str, generator: torch.Generator) -> None:
    resize, resize_grad = (getattr(kernels, name + suffix) for name in ("resize", "resize_grad"))
    wide, out = (randn((1, side, side, 24), torch.float32, generator) for side in (2, 4))
    x, dy, settings = wide[..., 4:20], out[..., 2:18], {"mode": "bilinear", "scales": (0.5, 0.5)}
    for launch, read, like in ((resize, x, dy), (resize_grad, dy, x)):
        own, rounded, room = (
            poisoned_like(like),
            poisoned_like(like),
            like.new_zeros(*like.shape[:3], 40),
        )
        launch(read.contiguous(), own, **settings)
        launch(read, room[..., 7:23], **settings)
        torch.testing.assert_close(room[..., 7:23], own, rtol=0, atol=ROUNDING)
        assert not room[..., :7].any()
        assert not room[..., 23:].any()
        launch(read, rounded, **settings, precision="tf32")
        assert torch.equal(rounded, stored_reference(own, torch.float32, "tf32"))


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((9, 512, 512, 256), torch.bfloat16, generator)
    y = poisoned((9, 1024, 1024, 256), torch.bfloat16, x.device)
    settings = {"mode": "nearest", "scales": (0.5, 0.5)}
    kernels.resize(x, y, **settings)
    assert torch.equal(y[8, 1::2, ::2], x[8])
    dx = poisoned_like(x[:1])
    assert_repeatable(lambda: kernels.resize_grad(y[:1], dx, **settings), dx)
    assert torch.equal(dx, 4 * x[:1])
