"""Small kernels of tests that compile, in a module that other processes can import."""

import triton
import triton.language as tl

OFFSET = tl.constexpr(16)


@triton.jit
def fails(x_ptr) -> None:  # noqa: ANN001
    tl.static_assert(False)


@triton.jit
def nothing(x_ptr) -> None:  # noqa: ANN001
    pass


@triton.jit
def place(x_ptr):  # noqa: ANN001, ANN201
    return x_ptr + OFFSET


@triton.jit
def calls(x_ptr) -> None:  # noqa: ANN001
    tl.store(place(x_ptr), 1)


@triton.jit
def calls_too(x_ptr) -> None:  # noqa: ANN001
    """Longer than `calls`, so that another process takes it first."""
    tl.store(place(x_ptr), 2)
    tl.store(x_ptr, 2)


@triton.jit
def stores(x_ptr, value, SHIFT: tl.constexpr) -> None:  # noqa: ANN001, N803
    tl.store(x_ptr + SHIFT, value)
