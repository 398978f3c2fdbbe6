"""Training under a policy, and gradients beside those of a float64 twin."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.running import Batch
from tvdnn.engine import Trainer, virtualize
from tvdnn.optim import SGD

CPU = torch.device("cpu")
Pair = tuple[Tensor | None, Tensor | None]


def trained(
    net: nn.Module, batches: Sequence[Batch], device: torch.device = CPU, **options: Any
) -> list[Tensor]:
    """The losses of a step a batch, and the parameters after them; `options` are Trainer's."""
    net = net.to(device)
    trainer = Trainer(net, batches[0][0].to(device), optimizer=SGD(lr=0.1), **options)
    losses = [trainer.step(x.to(device), y.to(device)).clone() for x, y in batches]
    trainer.close()
    return [*losses, *(param.detach() for param in net.parameters())]


def beside_float64(net: nn.Module, batch: Batch, **options: Any) -> list[Pair]:
    """The loss and the gradients of the input and each parameter, each beside torch's in float64.

    `options` are virtualize's.
    """
    x, y = batch
    twin = copy.deepcopy(net).double()
    virtual = virtualize(net, x, dtype="fp32", **options)
    inputs = (x.clone().requires_grad_(), x.double().requires_grad_())
    mine, theirs = (
        functional.cross_entropy(each(given), y)
        for each, given in zip((virtual, twin), inputs, strict=True)
    )
    for loss in (mine, theirs):
        loss.backward()
    pairs = (inputs, *zip(net.parameters(), twin.parameters(), strict=True))
    return [(mine.detach(), theirs.detach()), *((one.grad, other.grad) for one, other in pairs)]


def assert_gradients_are_torchs(
    net: nn.Module, batch: Batch, *, atol: float = 1e-7, **options: Any
) -> None:
    for mine, theirs in beside_float64(net, batch, **options):
        assert mine is not None
        assert theirs is not None
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=atol)
