"""Launches of pool_max.py, pool_max_grad.py and pool_avg.py to compile."""

import torch

from tests.support.offline import Case
from tvdnn.kernels.pool import avg as pool_avg
from tvdnn.kernels.pool import max as pool_max
from tvdnn.kernels.pool import max_grad as pool_max_grad


def _maps(
    side: int, out_side: int, channels: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.empty(2, side, side, channels, dtype=dtype, device="meta")
    return x, torch.empty(2, out_side, out_side, channels, dtype=dtype, device="meta")


def _max(
    side: int, out_side: int, kernel: int, padding: int, dtype: torch.dtype = torch.bfloat16
) -> None:
    x, y = _maps(side, out_side, 64, dtype)
    settings = {"kernel": (kernel, kernel), "padding": (padding, padding)}
    pool_max.max_pool2d(x, y, **settings, stride=(2, 2), dilation=(1, 1))
    pool_max_grad.max_pool2d_grad(x, y, x, **settings, stride=(2, 2), dilation=(1, 1))
    codes = torch.empty(*y.shape[:3], 16 if kernel == 2 else 32, dtype=torch.uint8, device="meta")
    pool_max.max_pool2d_codes(x, y, codes, **settings, stride=(2, 2), dilation=(1, 1))
    pool_max_grad.max_unpool2d(y, codes, x, **settings, stride=(2, 2))


def _avg() -> None:
    x, y = _maps(57, 28, 64)
    settings = {"kernel": (3, 3), "stride": (2, 2), "padding": (0, 0)}
    pool_avg.avg_pool2d(x, y, **settings, count_include_pad=True, divisor_override=None)
    pool_avg.avg_pool2d_grad(y, x, **settings, count_include_pad=False, divisor_override=None)


def _adaptive() -> None:
    x, y = _maps(14, 7, 512)
    pool_avg.adaptive_avg_pool2d(x, y)
    pool_avg.adaptive_avg_pool2d_grad(y, x)


CASES = [
    Case("max 2x2", lambda: _max(224, 112, 2, 0)),
    Case("max 3x3", lambda: _max(112, 56, 3, 1)),
    Case("max 3x3, float32", lambda: _max(112, 56, 3, 1, torch.float32)),
    Case("avg", _avg),
    Case("adaptive avg", _adaptive),
]
