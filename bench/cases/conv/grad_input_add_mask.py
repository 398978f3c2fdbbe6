"""The gradient of a 1x1 convolution's input, added to another and masked."""

from bench.cases.case import At, KernelCase, checked
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.conv.grad_input_add_mask import conv2d_grad_last


def _grad(o: Operands, size: Shape, wide: int = 128, narrow: int = 64, bits: bool = True) -> Launch:
    """The gradient goes from `narrow` channels to `wide` ones. `bits`: signs mask, else a map."""
    pixels = size[:3]
    dy, added = o.randn(*pixels, narrow, dtype=BF16), o.randn(*pixels, wide, dtype=BF16)
    packed = o.randn(wide, 1, 1, narrow, dtype=BF16).mul_(narrow**-0.5)
    signs, y = o.integers(256, *pixels, wide // 8, dtype=U8), o.randn(*pixels, wide, dtype=BF16)
    dx = o.out(*pixels, wide, dtype=BF16)
    return launching(conv2d_grad_last, dy, packed, added, signs if bits else y, dx)


CASES = (
    KernelCase(
        conv2d_grad_last,
        _grad,
        checked(bits=(True, False)),
        [At((64, 56, 56, 0), {"wide": 256, "bits": each}, wgmma=True) for each in (True, False)],
        odd=False,
    ),
)
