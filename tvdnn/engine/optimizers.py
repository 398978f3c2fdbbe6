"""Optimizers that are torch's own classes, and the settings that a planned step reads.

Learning-rate schedulers and state_dict work on them as on torch's; the update itself runs inside
the planned step, with the settings found here at that time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..graph import Graph
from ..kernels.optim.update import adamw_control
from ..optim import SGD
from .optimizer_state import OptimizerState, Spec
from .sharded_state import ShardedState
from .state_shards import StateShards


class Planned(torch.optim.Optimizer):
    """An optimizer whose updates are part of planned steps.

    `planned_state` has the tensors of its state. Those of a parameter appear in `state`, as torch's
    do, at its first update.
    """

    planned_state: OptimizerState

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing: the planned step has updated the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """What torch's optimizer saves. Processes that have shards of it call it together."""
        with self.planned_state.gathered(self):
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what state_dict saved, in the tensors that planned steps update."""
        super().load_state_dict(self.planned_state.loaded_by_torch(state_dict))
        self.planned_state.load(self, state_dict)


class PlannedSGD(Planned, torch.optim.SGD):
    """torch.optim.SGD with planned updates."""


class PlannedAdamW(Planned, torch.optim.AdamW):
    """torch.optim.AdamW with planned updates."""


def plan_optimizer(
    spec: Spec, params: Sequence[Tensor], shards: StateShards | None = None
) -> Planned:
    """The optimizer of `params` that `spec` describes, memory for its state allocated.

    That is all of the state, or this process's shard of it.
    """
    kind = PlannedSGD if isinstance(spec, SGD) else PlannedAdamW
    optimizer = kind(params, **asdict(spec))
    state = OptimizerState(spec, params) if shards is None else ShardedState(spec, params, shards)
    optimizer.planned_state = state
    return optimizer


@dataclass(frozen=True, slots=True)
class Updated:
    """The parameters that one schedule updates, by name, and their places among the counts.

    Gradients of some come by the `computed` ones, of which the schedule sums them.
    """

    names: tuple[str, ...]
    params: tuple[Tensor, ...]
    numbers: Tensor
    computed: tuple[str, ...] = ()


def updated_by(graph: Graph, optimizer: Planned, params: Mapping[str, Tensor]) -> Updated:
    """The parameters that a step of the graph updates; others no output depends on."""
    changed = {name for each in graph.passes for name in each.updates}
    formulas = graph.network.formulas
    computed = tuple(name for name in formulas if name in changed)
    changed |= {reached for name in computed for reached in formulas[name].reaches}
    names = tuple(name for name in params if name in changed)
    found = tuple(params[name] for name in names)
    numbers = torch.tensor(
        [optimizer.planned_state.numbers[param] for param in found], dtype=torch.int64
    )
    return Updated(names, found, numbers, computed)


def count_step(optimizer: Planned, updated: Updated, *, by: int = 1) -> None:
    """Count a step beside each parameter, as torch does; `by` of -1 takes one back."""
    planned_state = optimizer.planned_state
    planned_state.steps.index_add_(0, updated.numbers, torch.full((len(updated.names),), float(by)))
    if by < 0:
        return
    if updated.names not in planned_state.shown:
        planned_state.show(optimizer, updated.params)
        planned_state.shown.add(updated.names)
    optimizer.step()


def control_of(optimizer: Planned, updated: Updated) -> tuple[float, ...]:
    """The settings of the next step: seven floats, as the optimizer's kernels read them.

    Raises InputError for settings that the planned step cannot follow.
    """
    _check_settings(optimizer)
    _check_params(optimizer, updated)
    optimizer.planned_state.check_layout(updated.names, updated.params)
    optimizer.planned_state.follow_writes(optimizer)
    steps = _steps_before(optimizer, updated)
    group = optimizer.param_groups[0]
    if isinstance(optimizer, PlannedSGD):
        names = ("lr", "momentum", "dampening", "weight_decay")
        return (*(float(group[name]) for name in names), float(steps == 0), 1.0)
    settings = {name: group[name] for name in ("betas", "eps", "weight_decay")}
    lr = float(group["lr"])
    control: tuple[float, ...] = adamw_control(step=steps + 1, lr=lr, **settings)
    return control


def _check_settings(optimizer: Planned) -> None:
    """Raise InputError where the optimizer was changed in a way that compiled updates ignore."""
    spec, (group, *others) = optimizer.planned_state.spec, optimizer.param_groups
    if others:
        raise InputError(
            "the trainer's optimizer has several parameter groups; a planned step has one"
        )
    fixed = {**spec.switches, "amsgrad": False}
    for name, value in fixed.items():
        if group.get(name, value) != value:
            raise InputError(
                f"{name} of the trainer's optimizer is now {group[name]} and was {value} when the"
                " step was planned; set it back or make a new trainer"
            )
    if isinstance(spec, SGD) and group["momentum"] and not spec.momentum:
        raise InputError(
            f"momentum of the trainer's optimizer is now {group['momentum']} and was 0 when the"
            " step was planned, which keeps no momentum buffers; make a new trainer"
        )
    if isinstance(spec, SGD) and spec.momentum and not group["momentum"]:
        raise InputError(
            f"momentum of the trainer's optimizer is now 0 and was {spec.momentum} when the step"
            " was planned, which would write over the momentum buffers that torch then leaves;"
            " make a new trainer"
        )


def _check_params(optimizer: Planned, updated: Updated) -> None:
    """Raise InputError where a parameter that the step updates is the optimizer's no longer."""
    kept = set(map(id, optimizer.param_groups[0]["params"]))
    for name, param in zip(updated.names, updated.params, strict=True):
        if id(param) not in kept:
            raise InputError(
                f"parameter {name} was taken out of the trainer's optimizer, and the planned step"
                " would update it all the same; freeze it by requires_grad_(False), or make a new"
                " trainer"
            )


def _steps_before(optimizer: Planned, updated: Updated) -> int:
    """How many updates the parameters had, at most.

    Raises InputError where they had not the same number and the next update depends on it.
    """
    if not updated.names:
        return 0
    steps = optimizer.planned_state.steps[updated.numbers]
    least, most = (int(count) for count in steps.aminmax())
    if least != most and _depends_on_count(optimizer):
        fewer, more = (updated.names[int(steps.eq(count).nonzero()[0])] for count in (least, most))
        raise InputError(
            f"{fewer} was updated {least} times and {more} {most} times; a planned step of"
            f" {type(optimizer.planned_state.spec).__name__} takes one count for all that it"
            " updates, so make a new trainer where other parameters are trained than before"
        )
    return most


def _depends_on_count(optimizer: Planned) -> bool:
    """Whether an update depends on how many there were.

    SGD's first momentum is the gradient, which zeros become too unless there is dampening.
    """
    group = optimizer.param_groups[0]
    return isinstance(optimizer, PlannedAdamW) or bool(group["momentum"] and group["dampening"])
