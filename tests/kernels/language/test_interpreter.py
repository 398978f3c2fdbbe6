"""Narrow floats in kernels compute as in torch: mended in the interpreter, native on a GPU."""

import threading

import pytest
import torch
import triton
import triton.language as tl

from tests.kernels.numerics import poisoned, poisoned_like, randn, rms_error
from tests.support import interpreter
from tvdnn.kernels.language import device as target

SIDE = 32
HALF = tl.constexpr(0.5)


@triton.jit
def _arithmetic_kernel(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):  # noqa: ANN001, ANN202
    offs = tl.arange(0, SIZE)
    a, b = tl.load(a_ptr + offs), tl.load(b_ptr + offs)
    tl.store(out_ptr + offs, a + b)
    tl.store(out_ptr + SIZE + offs, a * b)
    tl.store(out_ptr + 2 * SIZE + offs, tl.where(a > b, a, -b))
    tl.store(out_ptr + 3 * SIZE + offs, tl.maximum(tl.abs(a), b))
    tl.store(out_ptr + 4 * SIZE + offs, tl.minimum(a, b))


@triton.jit
def _reduce_kernel(a_ptr, out_ptr, SIDE: tl.constexpr):  # noqa: ANN001, ANN202
    offs = tl.arange(0, SIDE)
    a = tl.load(a_ptr + offs[:, None] * SIDE + offs[None, :])
    tl.store(out_ptr + offs, tl.max(a, 1))
    tl.store(out_ptr + SIDE + offs, tl.min(a, 1))
    tl.store(out_ptr + 2 * SIDE + offs, tl.sum(a.to(tl.float32), 1).to(a.dtype))


@triton.jit
def _dot_kernel(a_ptr, b_ptr, out_ptr, SIDE: tl.constexpr):  # noqa: ANN001, ANN202
    offs = tl.arange(0, SIDE)
    square = offs[:, None] * SIDE + offs[None, :]
    product = tl.dot(tl.load(a_ptr + square), tl.load(b_ptr + square))
    tl.store(out_ptr + square, product)


@triton.jit
def _cast_kernel(a_ptr, out_ptr, size, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202
    for start in range(0, size, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < size
        a = tl.load(a_ptr + offs, mask=mask, other=0.0)
        tl.store(out_ptr + offs, a.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _masked_kernel(a_ptr, out_ptr, size, SIDE: tl.constexpr):  # noqa: ANN001, ANN202
    offs = tl.arange(0, SIDE)
    a = tl.load(a_ptr + offs, mask=(offs < SIDE) & (size > 1), other=0.0)
    tl.store(out_ptr + offs, tl.exp(-(HALF * a)), mask=(offs >= 0) & (size > 0))


def pair(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two bfloat16 squares."""
    first = randn((SIDE, SIDE), torch.bfloat16, generator)
    return first, randn((SIDE, SIDE), torch.bfloat16, generator)


def test_bfloat16_arithmetic_rounds_to_nearest(generator: torch.Generator) -> None:
    a, b = pair(generator)
    out = poisoned((5, SIDE, SIDE), torch.bfloat16, a.device)
    _arithmetic_kernel[(1,)](a, b, out, SIZE=SIDE * SIDE)
    expected = [a + b, a * b, torch.where(a > b, a, -b), a.abs().maximum(b), a.minimum(b)]
    assert torch.equal(out, torch.stack(expected))


def test_bfloat16_reductions(generator: torch.Generator) -> None:
    a, _ = pair(generator)
    out = poisoned((3, SIDE), torch.bfloat16, a.device)
    _reduce_kernel[(1,)](a, out, SIDE=SIDE)
    assert torch.equal(out[:2], torch.stack([a.amax(1), a.amin(1)]))
    assert rms_error(out[2], a.float().sum(1)) <= 4e-3


def test_bfloat16_dot_sums_in_float32(generator: torch.Generator) -> None:
    a, b = pair(generator)
    out = poisoned((SIDE, SIDE), torch.float32, a.device)
    _dot_kernel[(1,)](a, b, out, SIDE=SIDE)
    assert rms_error(out, a.float() @ b.float()) <= 1e-6


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_casts_there_and_back(dtype: torch.dtype, generator: torch.Generator) -> None:
    a = randn((1001,), torch.float32, generator, 20.0)
    narrow = torch.empty(a.shape, dtype=dtype, device=a.device)
    wide = poisoned_like(a)
    _cast_kernel[(1,)](a, narrow, 1001, BLOCK=256)
    _cast_kernel[(1,)](narrow, wide, 1001, BLOCK=256)
    assert torch.equal(wide, a.to(dtype).float())


def test_scalars_mask_and_constants_scale(generator: torch.Generator) -> None:
    a = randn((SIDE,), torch.float32, generator)
    out = poisoned_like(a)
    for size, seen in ((1, torch.zeros_like(a)), (2, a)):
        _masked_kernel[(1,)](a, out, size, SIDE=SIDE)
        assert rms_error(out, torch.exp(-0.5 * seen)) <= 1e-6


def test_unknown_argument_is_an_error(generator: torch.Generator) -> None:
    a, _ = pair(generator)
    with pytest.raises((TypeError, KeyError), match="num_warp"):
        _reduce_kernel[(1,)](a, a, SIDE=SIDE, num_warp=4)


@pytest.mark.skipif(not target.interpreted(), reason="the interpreter's state is concerned")
def test_threads_take_turns(generator: torch.Generator) -> None:
    sources = [randn((5000,), torch.float32, generator) for _ in range(4)]
    copies = [poisoned_like(source) for source in sources]
    threads = [
        threading.Thread(target=_cast_kernel[(1,)], args=(source, copy, 5000, 256))
        for source, copy in zip(sources, copies, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(torch.equal, sources, copies))


@pytest.mark.skipif(not target.interpreted(), reason="the interpreter is concerned")
def test_installing_twice_changes_nothing() -> None:
    before = interpreter.Builder.binary_op
    interpreter.install()
    assert interpreter.Builder.binary_op is before
    assert target.capability() == (0, 0)
