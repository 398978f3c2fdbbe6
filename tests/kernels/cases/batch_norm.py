"""Launches of batch_norm.py and batch_norm_grad.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.norm import batch_norm, batch_norm_grad
from tvdnn.kernels.norm.batch_norm_tiles import batch_norm_plan


def _launch(shape: tuple[int, ...], dtype: torch.dtype, precision: str) -> None:
    plan, channels = batch_norm_plan(shape), shape[-1]
    x = torch.empty(shape, dtype=dtype, device="meta")
    partials = torch.empty(plan.partials_shape(shape[0], channels), device="meta")
    statistics = torch.empty(3, channels, device="meta")
    one, count = statistics[0], torch.empty(1, dtype=torch.int64, device="meta")
    cut = {"shape": shape, "group": plan.group, "eps": 1e-5}
    batch_norm.batch_norm_moments(x, partials, group=plan.group)
    for momentum in (0.1, None):
        merge = partial(batch_norm.batch_norm_statistics, momentum=momentum, **cut)
        merge(partials, statistics, one, one, count)
    batch_norm.batch_norm_recall(one, one, statistics, eps=1e-5)
    signs = torch.empty(*shape[:-1], channels // 8, dtype=torch.uint8, device="meta")
    if channels % 8 == 0:
        settings = {"function": "relu", "precision": precision}
        by = {"residual_by": (statistics, one, one)}
        batch_norm.batch_norm(x, statistics, one, one, x, x, signs, **settings, **by)
        sums = partial(batch_norm_grad.batch_norm_grad_sums, group=plan.group, **settings)
        sums(x, x, x, statistics, one, one, signs, partials, x, other=(x, statistics, partials))
        sums(x, x, None, statistics, one, one, None, partials, None)
    for residual, function in ((None, ""), (None, "relu"), (x, "relu"), (None, "silu")):
        settings = {"function": function, "precision": precision}
        batch_norm.batch_norm(x, statistics, one, one, residual, x, **settings)
        sums = partial(batch_norm_grad.batch_norm_grad_sums, group=plan.group, **settings)
        sums(x, x, residual, statistics, one, one, residual, partials, residual)
        grad = partial(batch_norm_grad.batch_norm_grad_input, rows=8, **settings)
        grad(x, x, statistics, one, one, one, one, x)
    grad(x, x, statistics, one, one, one, one, x, added=x, rounded_from=channels // 2)
    batch_norm_grad.batch_norm_grad_params(partials, statistics, one, one)


CASES = [
    Case("wide", partial(_launch, (64, 56, 56, 256), torch.bfloat16, "ieee")),
    Case("tf32", partial(_launch, (64, 56, 56, 256), torch.float32, "tf32")),
    Case("odd", partial(_launch, (64, 7, 7, 17), torch.float32, "ieee")),
    Case("features", partial(_launch, (64, 1000), torch.bfloat16, "ieee")),
]
