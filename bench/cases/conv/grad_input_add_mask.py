"""The gradient of a 1x1 convolution's input, added to another and masked."""

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.conv.grad_input_add_mask import conv2d_grad_last


def _grad(o: Operands, size: Shape, wide: int = 128, narrow: int = 64) -> Launch:
    """The gradient goes from `narrow` channels to `wide` ones."""
    pixels = size[:3]
    dy, added = o.randn(*pixels, narrow, dtype=BF16), o.randn(*pixels, wide, dtype=BF16)
    packed = o.randn(wide, 1, 1, narrow, dtype=BF16).mul_(narrow**-0.5)
    signs, dx = o.integers(256, *pixels, wide // 8, dtype=U8), o.out(*pixels, wide, dtype=BF16)
    return launching(conv2d_grad_last, dy, packed, added, signs, dx)


CASES = (
    KernelCase(
        conv2d_grad_last,
        _grad,
        compiled=[At((64, 56, 56, 0), {"wide": 256}, wgmma=True)],
        odd=False,
    ),
)
