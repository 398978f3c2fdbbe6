"""The zoo's networks at small width: they train as by torch, and alike wherever their maps are."""

import copy
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import tvdnn
from tests.support.running import Batch, random_batches
from tvdnn import models
from tvdnn.engine import training_graph
from tvdnn.engine.build import default_costs
from tvdnn.models.densenet import DenseNet
from tvdnn.models.resnet import BasicBlock, Bottleneck, ResNet
from tvdnn.planner import make as planning

pytestmark = pytest.mark.usefixtures("units_of_one", "few_trials")

CLASSES, BATCH, STEPS = 4, 4, 5
CANDIDATES = 8  # for each step's batch
LEARNING_RATE, MOMENTUM = 0.001, 0.9
NOISE = 3e-7  # of float32, relative
SGD = tvdnn.optim.SGD(lr=LEARNING_RATE, momentum=MOMENTUM)
CHUNK_SIZE = "128KiB"
Make = Callable[..., nn.Module]
NETS: dict[str, tuple[Make, int]] = {
    "nin": (partial(models.nin, width=1 / 16, dropout=0.0), 67),
    "vgg11_bn": (partial(models.vgg11_bn, width=1 / 32, dropout=0.0), 32),
    "resnet": (partial(ResNet, BasicBlock, (1, 1, 1, 1), width=1 / 16), 32),
    "resnext": (partial(ResNet, Bottleneck, (1, 2, 1, 1), width=1 / 16, groups=2, inner=2.0), 32),
    "densenet": (partial(DenseNet, (2, 2, 2, 2), 8, 16, width=0.5), 32),
    "googlenet": (partial(models.googlenet, width=1 / 16, dropout=0.0), 64),
    "unet": (partial(models.unet, width=1 / 32), 32),
    "upsampling unet": (partial(models.unet, width=1 / 32, upsample=True), 32),
    "inception_v3": (partial(models.inception_v3, width=1 / 32, dropout=0.0), 75),
}
# Through a hundred layers statistics of few values make torch's own rounding too large to compare.
EVALUATED = ("inception_v3",)


def network(name: str) -> nn.Module:
    """The network with weights that keep the size of maps. Rounding stays small."""
    torch.manual_seed(0)
    net = NETS[name][0](num_classes=CLASSES)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return net.eval() if name in EVALUATED else net


def with_torchs_functions(net: nn.Module) -> nn.Module:
    """A copy of the network in which torch computes every layer."""
    return torch.fx.symbolic_trace(copy.deepcopy(net))


def trained(name: str, policy: str, budget: int | None = None) -> tuple[list[Tensor], nn.Module]:
    """The losses of some steps, and the network after them."""
    net, batches = network(name), batches_of(name)
    options = {"optimizer": SGD, "policy": policy, "budget": budget, "chunk_size": CHUNK_SIZE}
    trainer = tvdnn.Trainer(net, batches[0][0], order_seed=1, **options)
    return [trainer.step(*batch) for batch in batches], net


def trained_by_torch(name: str, dtype: torch.dtype) -> tuple[list[Tensor], nn.Module]:
    net, optimizer = torchs_own(name, dtype)
    return [torchs_step(net, optimizer, batch) for batch in batches_of(name)], net


def torchs_own(name: str, dtype: torch.dtype) -> tuple[nn.Module, torch.optim.Optimizer]:
    net = with_torchs_functions(network(name)).to(dtype)
    return net, torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def torchs_step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    x, y = batch
    optimizer.zero_grad()
    loss = functional.cross_entropy(net(x.to(next(net.parameters()).dtype)), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@cache
def batches_of(name: str) -> list[Batch]:
    """A batch a step: of a few, that whose ReLUs' inputs stay farthest from zero in float64.

    One within rounding of zero falls on either side of it, depending on the order in which a
    processor sums, and the steps after it are not the same by far more than rounding.
    """
    side, chosen = NETS[name][1], []
    net, optimizer = torchs_own(name, torch.float64)
    for step in range(STEPS):
        candidates = random_batches(CANDIDATES, (BATCH, 3, side, side), CLASSES, seed=step)
        if "unet" in name:  # a class a pixel
            candidates = [(x, x.mean(1).mul(9).long().remainder(CLASSES)) for x, _ in candidates]
        chosen.append(max(candidates, key=lambda batch: distance_from_kinks(net, batch[0])))
        torchs_step(net, optimizer, chosen[-1])
    return chosen


def distance_from_kinks(net: nn.Module, x: Tensor) -> float:
    """The least input of any ReLU but zero, over the root mean square of that ReLU's inputs."""
    with torch.no_grad(), ReluInputs() as seen:
        net(x.double())
    return min(float(each.abs().min() / each.square().mean().sqrt()) for each in seen.inputs)


class ReluInputs(TorchFunctionMode):
    """Collects the inputs, zeros left out, of every ReLU within."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Tensor] = []

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function is functional.relu:
            self.inputs.append(args[0][args[0] != 0])
        return function(*args, **(kwargs or {}))


def floor_of(name: str, policy: str) -> int:
    x = batches_of(name)[0][0]
    graph = training_graph(network(name), x, optimizer=SGD, chunk_size=CHUNK_SIZE)
    return planning.Problem(graph, default_costs(graph)).floor(policy)[0]


@pytest.mark.parametrize("name", NETS)
def test_steps_follow_torch_wherever_maps_are(name: str) -> None:
    """Steps near vdnn-all:m's floor have keep's bits, and stay as near float64 as torch's."""
    losses, net = trained(name, "keep")
    budget = floor_of(name, "vdnn-all:m") * 101 // 100
    moved_losses, moved = trained(name, "vdnn-all:m", budget)
    assert [loss.item() for loss in losses] == [loss.item() for loss in moved_losses]
    state, moved_state = net.state_dict(), moved.state_dict()
    assert all(torch.equal(state[key], moved_state[key]) for key in state)
    torchs_losses, torchs = trained_by_torch(name, torch.float32)
    true_losses, true = trained_by_torch(name, torch.float64)
    assert deviation(losses, true_losses) <= 3 * deviation(torchs_losses, true_losses) + NOISE
    theirs, exact = torchs.state_dict(), true.state_dict()
    kinds = {"parameters": net.named_parameters(), "statistics": net.named_buffers()}
    for kind, tensors in kinds.items():
        keys = [key for key, tensor in tensors if tensor.is_floating_point()]
        ours, torchs_own, wanted = ([each[key] for key in keys] for each in (state, theirs, exact))
        assert deviation(ours, wanted) <= 3 * deviation(torchs_own, wanted) + NOISE, kind


def deviation(found: list[Tensor], exact: list[Tensor]) -> float:
    """The error of all tensors together, as a share of the exact ones."""
    pairs = [(mine.double(), true.double()) for mine, true in zip(found, exact, strict=True)]
    error = sum(float((mine - true).square().sum()) for mine, true in pairs)
    return (error / (sum(float(true.square().sum()) for _, true in pairs) or 1.0)) ** 0.5
