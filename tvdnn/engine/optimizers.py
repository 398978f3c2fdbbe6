"""Optimizers that are torch's own classes, and the settings that a planned step reads.

Learning-rate schedulers and state_dict work on them as on torch's; the update itself runs inside
the planned step, with the settings found here at that time.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from ..errors import InputError
from ..graph import Graph
from ..kernels.optim.update import adamw_control
from ..optim import SGD, AdamW
from ..placement import aligned
from ..placement.cuda_blocks import block_nbytes
from .state_shards import StateShards

Spec: TypeAlias = SGD | AdamW
EMPTY: Final[Mapping[str, Any]] = {"param_groups": (), "state": {}}


class Planned(torch.optim.Optimizer):
    """An optimizer whose updates are part of planned steps.

    `planned_state` has the tensors of its state. Those of a parameter appear in `state`, as torch's
    do, at its first update.
    """

    planned_state: "OptimizerState"

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing: the planned step has updated the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """What torch's optimizer saves. Processes that have shards of it call it together."""
        with self.planned_state.whole(self):
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what state_dict saved, in the tensors that planned steps update."""
        super().load_state_dict(self.planned_state.beside(state_dict))
        self.planned_state.take_over(self, state_dict)


class PlannedSGD(Planned, torch.optim.SGD):
    """torch.optim.SGD with planned updates."""


class PlannedAdamW(Planned, torch.optim.AdamW):
    """torch.optim.AdamW with planned updates."""


class OptimizerState:
    """The optimizer state of each parameter, and how often each parameter was updated.

    `steps` is float32, as torch's counts are, and its elements are AdamW's "step" tensors. Where
    the state is in shards, `states` has this process's pieces, and the optimizer's `state` has
    none.
    """

    def __init__(
        self, spec: Spec, params: Sequence[Tensor], shards: StateShards | None = None
    ) -> None:
        self.spec, self.shards = spec, shards
        self.steps = torch.zeros(len(params))
        self.shown: set[tuple[str, ...]] = set()  # names of parameters whose state is in `state`
        self._entries: dict[Tensor, dict[str, Tensor]] = {}  # what `state` was given of each
        self.numbers = {param: number for number, param in enumerate(params)}
        states = _zeros_beside([param for param in params for _ in spec.states], shards)
        self.states = {param: {name: next(states) for name in spec.states} for param in params}

    def tensors_of(self, param: Tensor) -> tuple[Tensor | None, ...]:
        """The state tensors that a kernel updates beside `param`; None for no momentum."""
        return tuple(self.states[param].values()) or (None,)

    def follow(
        self, optimizer: Planned, trained: Mapping[str, Tensor], known: Container[Tensor]
    ) -> None:
        """Let the optimizer have parameters that were frozen when it was made.

        `known` are the parameters that the network had then. Raises InputError for others.
        """
        missing = {name: param for name, param in trained.items() if param not in self.numbers}
        for name, param in missing.items():
            if param not in known:
                raise InputError(
                    f"parameter {name} was added or replaced after this trainer was made, and its"
                    " optimizer holds the old ones; make a new trainer"
                )
        if missing:
            self.adopt(optimizer, tuple(missing.values()))

    def adopt(self, optimizer: Planned, params: Sequence[Tensor]) -> None:
        """Add parameters to the optimizer, and make their state."""
        other = OptimizerState(self.spec, params, self.shards)
        self.numbers |= {param: len(self.steps) + n for param, n in other.numbers.items()}
        self.states |= other.states
        self.steps = torch.cat((self.steps, other.steps))
        optimizer.param_groups[0]["params"].extend(params)
        self.show(optimizer, tuple(optimizer.state))  # counts are elements of the new tensor

    def idle_nbytes(self, trained: Iterable[Tensor]) -> int:
        """Bytes of the state of all parameters beside those `trained` by a step."""
        return block_nbytes(self._nbytes(self.states)) - block_nbytes(self._nbytes(trained))

    def _nbytes(self, params: Iterable[Tensor]) -> int:
        states = (tensor for param in params for tensor in self.states[param].values())
        return sum(aligned(tensor.numel() * tensor.element_size()) for tensor in states)

    def show(self, optimizer: Planned, params: Iterable[Tensor]) -> None:
        """Put the state of these parameters into the optimizer's `state`."""
        for param in params:
            entry = {} if self.shards else dict(self.states[param])
            if isinstance(self.spec, AdamW):
                entry["step"] = self.steps[self.numbers[param]]
            optimizer.state[param].update(entry)
            self._entries[param] = entry

    def follow_writes(self, optimizer: Planned) -> None:
        """Take over what the caller has put into the optimizer's `state`, or taken out of it."""
        state = optimizer.state
        same = all(_has(state.get(param), entry) for param, entry in self._entries.items())
        beside = (param for param, entry in state.items() if entry and param in self.numbers)
        if not same or any(param not in self._entries for param in beside):
            self.take_over(optimizer)

    def take_over(self, optimizer: Planned, saved: Mapping[str, Any] = EMPTY) -> None:
        """Copy the state that the optimizer has into the tensors that steps update.

        Where there are shards, that of a state_dict comes first.
        """
        self.shown.clear()
        if self.shards:
            optimizer.state.update(_saved_states(optimizer, saved))
        self._entries.clear()
        for param, number in self.numbers.items():
            found = optimizer.state.pop(param, {})
            for name, tensor in self.states[param].items():
                given = found.get(name)
                if given is None:
                    tensor.zero_()
                elif self.shards:
                    self.shards.keep(tensor, param, given)
                else:
                    tensor.copy_(given)
            count = found.get("step", float(found.get("momentum_buffer") is not None))
            self.steps[number] = float(count)
            if found:
                self.show(optimizer, (param,))

    def beside(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state_dict without states that `take_over` copies into shards."""
        return {**state_dict, "state": {}} if self.shards else state_dict

    @contextmanager
    def whole(self, optimizer: Planned) -> Iterator[None]:
        """A context in which the optimizer's `state` is whole, in host memory where it is shards.

        All processes that have shards enter it together.
        """
        shown = {param: optimizer.state[param] for param in self._entries} if self.shards else {}
        for param, entry in shown.items():
            assert self.shards is not None
            pieces = self.states[param].items()
            found = {name: self.shards.whole(piece, param) for name, piece in pieces}
            optimizer.state[param] = {**found, **entry}
        try:
            yield
        finally:
            optimizer.state.update(shown)


def _saved_states(optimizer: Planned, saved: Mapping[str, Any]) -> dict[Tensor, dict[str, Any]]:
    """By parameter, the state that a state_dict has of it, as it lies there."""
    numbers = (number for group in saved["param_groups"] for number in group["params"])
    params = (param for group in optimizer.param_groups for param in group["params"])
    found = {
        param: saved["state"].get(number) for number, param in zip(numbers, params, strict=True)
    }
    return {param: dict(each) for param, each in found.items() if each}


def _has(found: Mapping[str, object] | None, entry: Mapping[str, Tensor]) -> bool:
    """Whether a parameter's state has these very tensors."""
    return found is not None and all(found.get(name) is each for name, each in entry.items())


def plan_optimizer(
    spec: Spec, params: Sequence[Tensor], shards: StateShards | None = None
) -> Planned:
    """The optimizer of `params` that `spec` describes, memory for its state allocated.

    That is all of the state, or this process's shard of it.
    """
    kind = PlannedSGD if isinstance(spec, SGD) else PlannedAdamW
    optimizer = kind(params, **asdict(spec))
    optimizer.planned_state = OptimizerState(spec, params, shards)
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


def _zeros_beside(params: Sequence[Tensor], shards: StateShards | None) -> Iterator[Tensor]:
    """A tensor of zeros for each parameter, laid out as it is, all of them in one allocation.

    Where there are shards it is a piece of one dimension.
    """
    if not params:
        return
    numels = [shards.numel(param) if shards else param.numel() for param in params]
    spans = [
        aligned(numel * param.element_size()) for numel, param in zip(numels, params, strict=True)
    ]
    block = torch.zeros(sum(spans), dtype=torch.uint8, device=params[0].device)
    for param, numel, piece in zip(params, numels, block.split(spans), strict=True):
        strides = torch.empty_like(param, device="meta").stride()
        shape, strides = ((numel,), (1,)) if shards else (param.shape, strides)
        yield piece.view(param.dtype).as_strided(shape, strides)


def control_of(optimizer: Planned, updated: Updated) -> tuple[float, ...]:
    """The settings of the next step: seven floats, as the optimizer's kernels read them.

    Raises InputError for settings that the planned step cannot follow.
    """
    _check_settings(optimizer)
    _check_params(optimizer, updated)
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
