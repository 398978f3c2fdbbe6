"""One step of a virtualized network as a node of torch's graph."""

from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..runtime.runner import Runner
from .gradient_checks import check_outputs, check_unchanged, versions_of, with_gradients
from .virtual_steps import StepKey, VirtualSteps


@dataclass(frozen=True, slots=True)
class AutogradCall:
    """One forward. Its tensors are the inputs and then the trained parameters."""

    steps: VirtualSteps
    runner: Runner
    key: StepKey
    num_inputs: int
    trained: tuple[str, ...]  # names of parameters, computed ones among them
    outputs: list[ReferenceType[Tensor]] = field(default_factory=list)  # once it has run


class AutogradStep(torch.autograd.Function):
    """The two halves of a schedule as one node of torch's graph.

    Parameters are among its inputs, so that hooks and accumulation work.
    """

    @staticmethod
    def forward(ctx: Any, call: AutogradCall, *tensors: Tensor) -> Any:
        inputs, graph = tensors[: call.num_inputs], call.runner.schedule.graph
        ctx.call = call
        ctx.inputs = [(tuple(x.shape), x.dtype) for x in inputs]
        core = call.steps.core_now()
        found = {**core.module.params, **core.computed.of(graph.network)}
        ctx.trained = {name: found[name] for name in call.trained}
        ctx.number, outputs = call.steps.run_forward(call.runner, call.key, inputs)
        read = _read_backward(call.runner)
        ctx.read = {name: each for name, each in found.items() if name in {*call.trained, *read}}
        ctx.versions = versions_of(graph.network, ctx.read)  # which the forward may change
        ctx.forms = [(y.shape, y.dtype, y.device) for y in outputs]
        names = zip(graph.network.outputs, outputs, strict=True)
        trained = {n.removeprefix("grad ") for n in graph.inputs.values() if n.startswith("grad ")}
        ctx.mark_non_differentiable(*(y for name, y in names if name not in trained))
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        call: AutogradCall = ctx.call
        network = call.runner.schedule.graph.network
        check_unchanged(network, ctx.read, ctx.versions)
        check_outputs(network, call.outputs)
        filled = [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device) in zip(grads, ctx.forms, strict=True)
        ]
        with call.steps.lock:
            verdict = call.steps.run_backward(call.runner, call.key, ctx.number, filled)
            found = _gradients(ctx, with_gradients(network, grads))
            call.steps.end_backward(call.key, verdict)
            return None, *found


def _read_backward(runner: Runner) -> frozenset[str]:
    """The parameters that a schedule's second half reads, also to make maps again."""
    schedule = runner.schedule
    steps = schedule.steps[schedule.phase_split :]
    passes = {step.pass_index for step in steps if step.pass_index >= 0}
    return frozenset(
        name for index in passes for name in schedule.graph.passes[index].params if name
    )


def _gradients(ctx: Any, reached: frozenset[str] | None) -> list[Tensor | None]:
    """The gradients of inputs and trained parameters; None where torch has none.

    `reached` are the names on which an output with a gradient depends; None for all names.
    """
    runner, graph = ctx.call.runner, ctx.call.runner.schedule.graph
    inputs = [
        runner.read_grad(name, dtype)
        if name in graph.input_grads and (reached is None or name in reached)
        else None
        for name, (_, dtype) in zip(graph.network.inputs, ctx.inputs, strict=True)
    ]
    params = [
        runner.read_param_grad(name, param) if reached is None or name in reached else None
        for name, param in ctx.trained.items()
    ]
    return inputs + params
