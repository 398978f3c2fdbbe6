"""Networks that reduce maps over dimensions."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from tests.networks.case import EXACT, HALF, LEAST, TENSOR, NetworkCase
from tests.networks.remap import SHAPE, Returns, Way

WAYS: dict[str, Way] = {
    "sum": lambda x: x.sum((1, 2)),
    "kept": lambda x: x.sum(2, keepdim=True) * 2,
    "mean of channels": lambda x: x.mean(1, keepdim=True),
    "mean of all": lambda x: x.mean((1, 2, 3), keepdim=True),
    "amax": lambda x: torch.relu(x).amax((2, 3)),
    "amin": lambda x: torch.relu(-x).neg().amin(-1),
    "max": lambda x: torch.relu(x).max(1)[0],
    "values": lambda x: torch.max(x, dim=3, keepdim=True).values,
    "sizes of values": lambda x: rows_of(torch.max(x, dim=3, keepdim=True).values),
    "sizes of values in place": lambda x: rows_of(x.max(dim=1, keepdim=True).values.relu_()),
    "min": lambda x: torch.min(torch.relu(x) * 2, 2)[0],
    "spatial attention": lambda x: torch.cat([x.mean(1, True), x.max(1, True)[0]], 1),
    "norm": lambda x: x.permute(0, 2, 3, 1).norm(p=2, dim=(1, 2), keepdim=True),
    "vector norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "var": lambda x: x.var((2, 3), unbiased=False),
    "std": lambda x: torch.std(x, 1, keepdim=True),
    "corrected": lambda x: torch.var(x, dim=(1, 3), correction=2),
    "several": lambda x: torch.cat(torch.var_mean(x, dim=(2, 3)), 1),
    "two each": lambda x: x.view(len(x), 2, 3, 6, 6).sum((1, 3)),
    "in turns": lambda x: x.view(len(x), 2, 3, 2, 3, 6).permute(0, 1, 3, 5, 2, 4).sum((1, 3)),
    "split attention": lambda x: torch.stack([x, x * 2], 1).sum(1),
    "rows": lambda x: torch.relu(x.flatten(2)).sum(2),
    "softmax of rows": lambda x: x.softmax(2),
    "softmax of pixels": lambda x: nn.functional.softmax(x.flatten(2), -1),
    "log_softmax": lambda x: torch.log_softmax(x, 3),
    "expand": lambda x: x.mean((2, 3), keepdim=True).expand(-1, -1, 3, 4),
}


def rows_of(x: Tensor) -> Tensor:
    """As a matrix, by the sizes that a map tells, times its number of dimensions."""
    assert x.dtype.is_floating_point
    assert len(x) == x.size(0)
    return x.reshape(x.shape[0], x.numel() // x.size(0)) * x.dim()


def mixed(x: Tensor) -> Tensor:
    parts = [x.std(1), torch.relu(x).amax(3), x.softmax(2).norm(dim=2), x.max(1)[0], x.sum(2)]
    return torch.cat([part.flatten(1) for part in parts], 1)


MIXED = NetworkCase(partial(Returns, mixed), SHAPE)
NETWORKS = {
    **{name: NetworkCase(partial(Returns, way), SHAPE) for name, way in WAYS.items()},
    "mixed": replace(MIXED, runs=(EXACT, TENSOR, HALF)),
    "mixed, in the least memory": replace(MIXED, runs=(EXACT,), policies=(LEAST,), gradients=False),
}
