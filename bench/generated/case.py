"""Case: a printed network, loaded; and the data that it runs on."""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bench.generated import rule

State = dict[str, Tensor]
OURS = re.compile(r"\btvdnn\.nn\.(?!StochasticDepth)")  # which torch has no layer for
BRANCHES = re.compile(r"tvdnn\.nn\.StochasticDepth\(([\d.]+), '\w+'\)")  # of all or nothing
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True, slots=True)
class Case:
    """A network as its source says it."""

    make: Callable[[], nn.Module]  # as written
    make_torch: Callable[[], nn.Module]  # of torch's layers alone
    shapes: Mapping[str, tuple[int, ...]]  # of the inputs, by name
    grads: Sequence[str]  # names of the inputs that require gradients
    settings: Mapping[str, Any]  # how tvdnn runs it


def load(text: str) -> Case:
    """The case that a printed network stands for.

    By default the network trains, and no input requires gradients.
    """
    given, plain = _run(text), _run(BRANCHES.sub(r"nn.Dropout(\1)", OURS.sub("nn.", text)))
    about = (given["INPUTS"], given.get("GRADS", []), given["SETTINGS"])
    return Case(_maker(given), _maker(plain), *about)


def _run(text: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "generated"}
    exec(compile(text, "<generated>", "exec"), namespace)
    return namespace


def _maker(names: Mapping[str, Any]) -> Callable[[], nn.Module]:
    if "make" in names:
        return cast(Callable[[], nn.Module], names["make"])
    return lambda: names["Net"]().train()


@dataclass(frozen=True, slots=True)
class Data:
    """Weights and inputs for one data seed. All are float32."""

    state: State
    inputs: tuple[tuple[Tensor, ...], ...]  # of each step
    seed: int
    rounded: bool  # to numbers that bfloat16 holds

    def gradient(self, step: int, number: int, shape: Sequence[int]) -> Tensor:
        """The gradient of output `number` in a step."""
        return self._round(_normal(shape, self.seed, 7, step, number))

    def target(self, loss: nn.Module, step: int, shape: Sequence[int]) -> Tensor:
        """Targets for outputs of this shape: classes, probabilities or numbers."""
        generator = _generator(self.seed, 11, step)
        if isinstance(loss, nn.CrossEntropyLoss):
            classes = (shape[0], *shape[2:])
            return torch.randint(0, shape[1], classes, generator=generator)
        values = torch.rand(tuple(shape), generator=generator)
        return self._round(values if isinstance(loss, nn.BCEWithLogitsLoss) else 2 * values - 1)

    def moved(self, dtype: str, seed: int) -> "Data":
        """The same data, inputs and weights moved by half a unit of rounding."""
        inputs = tuple(
            tuple(moved(x, dtype, seed, step, i) for i, x in enumerate(each))
            for step, each in enumerate(self.inputs)
        )
        return replace(self, state=moved_state(self.state, dtype, seed), inputs=inputs)

    def _round(self, values: Tensor) -> Tensor:
        return values.bfloat16().float() if self.rounded else values


def data_of(case: Case, seed: int, *, steps: int, rounded: bool) -> Data:
    """The data of a seed, with the network's initial weights. Weights of norms are drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = case.make_torch()
        _give_lazy_parameters(net, case)
        _draw_norms(net)
    state = {name: value.detach().clone() for name, value in net.state_dict().items()}
    inputs = tuple(
        tuple(_normal(shape, seed, 3, step, i) for i, shape in enumerate(case.shapes.values()))
        for step in range(steps)
    )
    if rounded:
        inputs = tuple(tuple(x.bfloat16().float() for x in each) for each in inputs)
        kept = {name: value.is_floating_point() for name, value in state.items()}
        state = {n: v.bfloat16().float() if kept[n] else v for n, v in state.items()}
    return Data(state, inputs, seed, rounded)


def _give_lazy_parameters(net: nn.Module, case: Case) -> None:
    """Let lazy layers take their sizes from a first call."""
    if any(is_lazy(param) for param in net.parameters()):
        with torch.no_grad():
            net(*(torch.zeros(shape) for shape in case.shapes.values()))


def _draw_norms(net: nn.Module) -> None:
    """Weights and statistics that are not ones and zeros."""
    with torch.no_grad():
        for module in net.modules():
            if not isinstance(module, NORMS):
                continue
            if module.weight is not None:
                module.weight.copy_(1 + 0.4 * torch.randn_like(module.weight))
            if module.bias is not None:
                module.bias.copy_(0.3 * torch.randn_like(module.bias))
            if getattr(module, "running_mean", None) is not None:
                module.running_mean.copy_(0.3 * torch.randn_like(module.running_mean))
                module.running_var.copy_(0.5 + torch.rand_like(module.running_var))


def moved(values: Tensor, dtype: str, *seeds: int) -> Tensor:
    """The values, each at random half a unit of a type's rounding smaller or larger."""
    signs = torch.randint(0, 2, values.shape, generator=_generator(*seeds)) * 2 - 1
    return values * (1 + rule.EPS[dtype] / 2 * signs.to(values.device))


def moved_state(state: State, dtype: str, seed: int) -> State:
    """A state with `moved` parameters and buffers. Integers and modules' notes stay the same."""
    twin = copy.copy(state)  # with what state_dict() holds beside names and values
    twin.update(
        (name, moved(value, dtype, seed, number))
        for number, (name, value) in enumerate(state.items())
        if value.is_floating_point()
    )
    return twin


def _normal(shape: Sequence[int], *seeds: int) -> Tensor:
    return torch.randn(tuple(shape), generator=_generator(*seeds))


def _generator(*seeds: int) -> torch.Generator:
    number = 0
    for seed in seeds:
        number = 1009 * number + seed + 1
    return torch.Generator().manual_seed(number)
