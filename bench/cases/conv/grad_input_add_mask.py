"""The gradient of a 1x1 convolution's input, added to another and masked."""

import torch

from bench.cases.case import At, KernelCase, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, U8, Operands, Shape
from tvdnn.kernels.conv.grad_input_add_mask import conv2d_grad_last


def _grad(
    o: Operands, size: Shape, wide: int = 128, narrow: int = 64, bits: bool = True,
    dtype: torch.dtype = BF16, out_precision: str = "ieee",
) -> Launch:  # fmt: skip
    """The gradient goes from `narrow` channels to `wide` ones. `bits`: signs mask, else a map."""
    pixels, precision = size[:3], "tf32" if dtype == F32 else "ieee"
    dy, added = o.randn(*pixels, narrow, dtype=dtype), o.randn(*pixels, wide, dtype=dtype)
    packed = o.randn(wide, 1, 1, narrow, dtype=dtype).mul_(narrow**-0.5)
    signs, y = o.integers(256, *pixels, wide // 8, dtype=U8), o.randn(*pixels, wide, dtype=dtype)
    operands = dy, packed, added, signs if bits else y, o.out(*pixels, wide, dtype=dtype)
    how = {"precision": precision, "out_precision": out_precision}
    return launching(conv2d_grad_last, *operands, **how)


KINDS = ({"dtype": BF16}, *({"dtype": F32, "out_precision": each} for each in ("ieee", "tf32")))
CASES = (
    KernelCase(
        conv2d_grad_last,
        _grad,
        {", ".join(map(str, each.values())): each for each in over(KINDS, bits=(True, False))},
        [
            At((64, 56, 56, 0), {"wide": 256, **each}, wgmma=True)
            for each in over(KINDS, bits=(True, False))
        ],
        odd=False,
        tolerance=1e-4,  # a value that is stored may round the other way to TF32
    ),
)
