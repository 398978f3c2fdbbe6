"""Small networks of which auto rounds maps inside a budget, and trainers of them."""

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor, nn

from tests.planner.test_coded_maps import dear
from tests.support.running import Batch, random_batches
from tvdnn.engine import Trainer, training_graph
from tvdnn.graph import Graph
from tvdnn.optim import SGD, AdamW
from tvdnn.planner.make import Problem

BATCH, SHAPE, CLASSES = 8, (3, 8, 8), 4
Make = Callable[[], nn.Sequential]
MOMENTUM = SGD(0.05, momentum=0.9)
ZERO_GRADIENTS = {"0.bias", "3.bias"}  # of `normalized`
WIDE = "lossy:0.5"  # a limit that rounding keeps


def normalized() -> nn.Sequential:
    """Its first map is the input of a normalization, whose gradients are sensitive."""
    return _stacked(lambda: [nn.BatchNorm2d(8), nn.ReLU()], 2)


def smooth() -> nn.Sequential:
    """No gradient depends on the sign of a rounded value."""
    return _stacked(lambda: [nn.SiLU()], 3)


def _stacked(between: Callable[[], list[nn.Module]], depth: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = list[nn.Module]()
    for number in range(depth):
        layers += [nn.Conv2d(8 if number else SHAPE[0], 8, 3, padding=1), *between()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * SHAPE[1] * SHAPE[2], CLASSES))


def graph_of(net: nn.Module, optimizer: SGD | AdamW = MOMENTUM) -> Graph:
    x = torch.empty(BATCH, *SHAPE)
    how = {"optimizer": optimizer, "sections": 4, "dtype": "tf32", "fuse": True}
    return training_graph(net, x, **how)


@cache
def budget_of(make: Make, optimizer: SGD | AdamW = MOMENTUM, share: float = 0.5) -> int:
    """A budget between auto's floor and keep's peak."""
    graph = graph_of(make(), optimizer)
    problem = Problem(graph, dear(graph))
    floor, peak = problem.floor("auto")[0], problem.schedule("keep").peak_nbytes
    return floor + int(share * (peak - floor))


def trainer_of(
    make: Make,
    allow: str | None,
    optimizer: SGD | AdamW = MOMENTUM,
    device: str = "cpu",
    **options: object,
) -> Trainer:
    net, x = make().to(device), torch.empty(BATCH, *SHAPE, device=device)
    how = {"optimizer": optimizer, "sections": 4, "dtype": "tf32", "order_seed": 1}
    how |= {"budget": budget_of(make, optimizer), "costs": dear(graph_of(make(), optimizer))}
    return Trainer(net, x, allow=allow, **{**how, **options})


def kept(make: Make, optimizer: SGD | AdamW = MOMENTUM) -> Trainer:
    """A trainer without a budget."""
    return trainer_of(make, None, optimizer, policy="keep", budget=None)


def batches(count: int, seed: int = 0) -> list[Batch]:
    return random_batches(count, (BATCH, *SHAPE), CLASSES, seed)


def relative_error(found: Tensor, exact: Tensor) -> float:
    return ((found - exact).double().norm() / exact.double().norm()).item()


def state_of(trainer: Trainer) -> Iterator[Tensor]:
    """All tensors of the network and the optimizer."""
    state = trainer.state_dict()
    yield from state["model"].values()
    for entry in state["optimizer"]["state"].values():
        yield from (each for each in entry.values() if isinstance(each, Tensor))
    yield torch.tensor([state["steps"], state["seed"]])


def same_state(one: Trainer, other: Trainer) -> bool:
    mine, theirs = list(state_of(one)), list(state_of(other))
    return len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))
