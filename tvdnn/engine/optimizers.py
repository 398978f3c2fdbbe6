"""Optimizers as torch's own classes see them, and what a planned step reads of them.

Learning-rate schedulers and state_dict work on them as on torch's; the update itself runs inside
the planned step, with the settings found here at that time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..kernels.optim import adamw_control
from ..memory import aligned
from ..optim import SGD, AdamW

Spec: TypeAlias = SGD | AdamW


class PlannedSGD(torch.optim.SGD):
    """SGD whose update the planned step has made."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing: the parameters are updated."""


class PlannedAdamW(torch.optim.AdamW):
    """AdamW whose update the planned step has made."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Count the step, as torch does beside each parameter."""
        for state in self.state.values():
            state["step"] += 1


Planned: TypeAlias = PlannedSGD | PlannedAdamW


def plan_optimizer(spec: Spec, params: Sequence[Tensor]) -> Planned:
    """The optimizer of `params` that `spec` describes, all of its state made."""
    if isinstance(spec, SGD):
        return _with_state(PlannedSGD(params, **asdict(spec)), spec, params, {})
    return _with_state(PlannedAdamW(params, **asdict(spec)), spec, params, {"step": 0.0})


def _with_state(
    optimizer: Planned, spec: Spec, params: Sequence[Tensor], scalars: Mapping[str, float]
) -> Planned:
    states = _zeros_beside([param for param in params for _ in spec.states])
    for param in params:
        for name in spec.states:
            optimizer.state[param][name] = next(states)
        for name, value in scalars.items():
            optimizer.state[param][name] = torch.tensor(value)
    return optimizer


def _zeros_beside(params: Sequence[Tensor]) -> Iterator[Tensor]:
    """A tensor of zeros for each parameter, laid out as it is, all of them in one allocation."""
    if not params:
        return
    spans = [aligned(param.numel() * param.element_size()) for param in params]
    block = torch.zeros(sum(spans), dtype=torch.uint8, device=params[0].device)
    for param, piece in zip(params, block.split(spans), strict=True):
        strides = torch.empty_like(param, device="meta").stride()
        yield piece.view(param.dtype).as_strided(param.shape, strides)


def states_of(optimizer: Planned, spec: Spec, param: Tensor) -> tuple[Tensor | None, ...]:
    """What a kernel of the optimizer updates beside `param`; None for a momentum that is not."""
    state = optimizer.state[param]
    return tuple(state[name] for name in spec.states) or (None,)


def control_of(optimizer: Planned, steps: int) -> tuple[float, ...]:
    """The settings of the step after `steps` others, as the optimizer's kernels read them."""
    group = optimizer.param_groups[0]
    if isinstance(optimizer, PlannedSGD):
        names = ("lr", "momentum", "dampening", "weight_decay")
        return (*(float(group[name]) for name in names), float(steps == 0), 1.0)
    settings = {name: group[name] for name in ("betas", "eps", "weight_decay")}
    lr = float(group["lr"])
    control: tuple[float, ...] = adamw_control(step=steps + 1, lr=lr, **settings)
    return control


def load_state(optimizer: Planned, spec: Spec, state: dict[str, Any]) -> None:
    """Restore what state_dict saved, in the tensors that captured steps update."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    held = {param: states_of(optimizer, spec, param) for param in params}
    optimizer.load_state_dict(state)
    for param, tensors in held.items():
        entry = optimizer.state[param]
        for name, tensor in zip(spec.states, tensors, strict=False):
            if tensor is not None:
                entry[name] = tensor.copy_(entry[name])
