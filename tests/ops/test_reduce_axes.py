"""Networks that reduce maps over dimensions: keep's bits under any plan, gradients as torch's."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.ops.test_remap import BATCH, CHUNK_SIZE, CLASSES, SHAPE, Returns, first_batch, kinds
from tests.support import twins
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

pytestmark = pytest.mark.usefixtures("few_trials")

Way = Callable[[Tensor], Tensor]
WAYS: dict[str, Way] = {
    "sum": lambda x: x.sum((1, 2)),
    "kept": lambda x: x.sum(2, keepdim=True) * 2,
    "mean of channels": lambda x: x.mean(1, keepdim=True),
    "mean of all": lambda x: x.mean((1, 2, 3), keepdim=True),
    "amax": lambda x: torch.relu(x).amax((2, 3)),
    "amin": lambda x: torch.relu(-x).neg().amin(-1),
    "max": lambda x: torch.relu(x).max(1)[0],
    "values": lambda x: torch.max(x, dim=3, keepdim=True).values,
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


@pytest.mark.parametrize("name", WAYS)
def test_follows_torch(name: str) -> None:
    options = {"policy": "vdnn-all:m", "chunk_size": CHUNK_SIZE, "order_seed": 1}
    assert_gradients_are_torchs(Returns(WAYS[name]), first_batch(), **options)


def mixed(x: Tensor) -> Tensor:
    parts = [x.std(1), torch.relu(x).amax(3), x.softmax(2).norm(dim=2), x.max(1)[0], x.sum(2)]
    return torch.cat([part.flatten(1) for part in parts], 1)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16"])
def test_every_policy_trains_to_the_same_bits(dtype: str) -> None:
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=5)
    train = partial(twins.trained, batches=batches, chunk_size=CHUNK_SIZE, dtype=dtype)
    kept = train(Returns(mixed), policy="keep")
    assert all(torch.isfinite(value).all() for value in kept)
    for options in ({"policy": "vdnn-all:m"}, {"policy": "auto", "budget": "min"}):
        moved = train(Returns(mixed), **options)
        assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))


def test_means_of_pixels_are_poolings() -> None:
    assert kinds(Returns(lambda x: x.mean((2, 3)))) == ["adaptive_avg_pool2d"]
    assert kinds(Returns(lambda x: x.mean((-1, -2), keepdim=True))) == ["adaptive_avg_pool2d"]


def test_a_sum_of_one_element_is_a_view() -> None:
    found = kinds(Returns(lambda x: x.unsqueeze(2).sum(2).unflatten(1, (6, 1)).amax(2)))
    assert "reduce_axes" not in found


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda x: x.sum(), r"sum of \(2, 3, 6, 6\) over None"),
        (lambda x: x.amax((0, 1)), r"amax of \(2, 3, 6, 6\) over \(0, 1\)"),
        (lambda x: x.max(1)[1], "max with indices"),
        (lambda x: x.norm(1, 2), "norm of order 1"),
        (lambda x: x.var(), "var of .* over None"),
        (lambda x: x.sum(1, dtype=torch.float64), "sum in float64"),
        (lambda x: torch.max(x), "max or min over the batch"),
    ],
)
def test_other_reductions_are_refused(way: Way, message: str) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return way(x)

    with pytest.raises(UnsupportedOpError, match=message):
        trace(Net(), [torch.empty(2, *SHAPE)])
