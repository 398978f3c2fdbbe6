"""Loops of one's own whose maps may be rounded inside a budget, and their gradients."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.planner.test_coded_maps import dear
from tests.support.rounding import BATCH, SHAPE, WIDE, Make, batches, graph_of, normalized, smooth
from tests.support.running import Batch
from tvdnn.engine import Virtualized, virtualize


def virtual_of(make: Make, allow: str | None, device: str = "cpu", **options: Any) -> Virtualized:
    x = torch.empty(BATCH, *SHAPE, device=device)
    how = {"sections": 4, "dtype": "tf32", "order_seed": 1, "costs": dear(graph_of(smooth()))}
    how |= {"allow": allow, **options}
    if "budget" not in how:
        how["budget"] = budget_of(make, device)
    return virtualize(make().to(device), x, **how)


@cache
def budget_of(make: Make, device: str = "cpu") -> int:
    """A budget between auto's floor and keep's peak, in which auto rounds maps."""
    floor = virtual_of(make, None, device, budget="min").schedule.peak_nbytes
    span = kept(make, device).schedule.peak_nbytes - floor
    budgets = (floor + span * share // 100 for share in (50, 40, 30, 60))
    return next(b for b in budgets if virtual_of(make, WIDE, device, budget=b).plan.rounded)


def kept(make: Make, device: str = "cpu", **options: Any) -> Virtualized:
    return virtual_of(make, None, device, policy="keep", budget=None, **options)


def loss_of(net: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(net(batch[0]), batch[1])


def gradients_of(net: nn.Module, batch: Batch) -> dict[str, Tensor]:
    net.zero_grad()
    loss_of(net, batch).backward()
    return {name: param.grad for name, param in net.named_parameters()}


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def less_than_the_error() -> str:
    """A limit that the first plan of `normalized` does not keep, though estimates say it does."""
    net = virtual_of(normalized, WIDE)
    gradients_of(net, batches(1)[0])
    assert net.rounding is not None
    return f"lossy:{0.7 * net.rounding.worst[0]:.6f}"
