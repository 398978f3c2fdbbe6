"""One step of a virtualized network as nodes of torch's graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..runtime.runner import Runner
from .backward_parts import BackwardPart
from .gradient_checks import check_outputs, check_unchanged, versions_of, with_gradients
from .virtual_steps import StepKey, VirtualSteps


@dataclass(slots=True)
class AutogradCall:
    """One forward, and what its backward has begun with."""

    steps: VirtualSteps
    runner: Runner
    key: StepKey
    inputs: tuple[Tensor, ...]  # until the forward has run
    device: torch.device
    dtypes: tuple[torch.dtype, ...]  # of the inputs
    params: dict[str, Tensor]  # as passes read them, computed ones among them
    trained: tuple[str, ...]  # names of parameters
    parts: tuple[BackwardPart, ...]  # of the second half
    taken: list[tuple[str, ...]] = field(init=False)  # by part, trained parameters it completes
    number: int = 0  # of the forward, once it has run
    outputs: list[ReferenceType[Tensor]] = field(default_factory=list)  # once it has run
    reached: frozenset[str] | None = None  # names with gradients, once backward has begun; all
    read: dict[str, Tensor] = field(default_factory=dict)  # parameters that backward reads
    versions: dict[str, int] = field(default_factory=dict)  # torch's counts of writes to them

    def __post_init__(self) -> None:
        """The last part takes all trained parameters that no earlier one completes."""
        left = dict.fromkeys(self.trained)
        self.taken = []
        for part in self.parts[:-1]:
            self.taken.append(tuple(name for name in part.names if name in left))
            for name in self.taken[-1]:
                del left[name]
        self.taken.append(tuple(left))

    def check_unchanged(self, part: int) -> None:
        """Raise EngineError for a parameter that was written while backward still reads it."""
        earlier = {*chain.from_iterable(self.taken[:part])}
        versions = {name: each for name, each in self.versions.items() if name not in earlier}
        check_unchanged(self.runner.schedule.graph.network, self.read, versions)


def run_step(call: AutogradCall, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a step's first half, whose second half is nodes of torch's graph.

    A part of the second half is a node, and takes the parameters `tensors` whose gradients it
    completes: hooks and accumulation see them while later parts run. The nodes form a chain. The
    last part also takes the inputs.
    """
    node: Any = LaterPart  # whose `apply` has types from torch 2.15 on
    link: tuple[Tensor, ...] = call.inputs
    for part in reversed(range(1, len(call.parts))):
        link = (node.apply(call, part, *link, *(tensors[n] for n in call.taken[part])),)
    step: Any = AutogradStep
    outputs = step.apply(call, *link, *(tensors[name] for name in call.taken[0]))
    call.outputs.extend(map(ref, outputs))
    result: tuple[Tensor, ...] = outputs
    return result


class AutogradStep(torch.autograd.Function):
    """The first half of a schedule, and the first part of the second.

    Its tensors are the network's inputs and then parameters. Where later parts follow, the result
    of LaterPart stands for the inputs.
    """

    @staticmethod
    def forward(ctx: Any, call: AutogradCall, *tensors: Tensor) -> Any:
        graph = call.runner.schedule.graph
        ctx.call = call
        call.number, outputs = call.steps.run_forward(call.runner, call.key, call.inputs)
        call.inputs = ()
        read = call.runner.read_backward.union(call.trained)
        call.read = {name: each for name, each in call.params.items() if name in read}
        call.versions = versions_of(graph.network, call.read)  # which the forward may change
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
        call.check_unchanged(0)
        check_outputs(network, call.outputs)
        filled = [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device) in zip(grads, ctx.forms, strict=True)
        ]
        with call.steps.lock:
            call.reached = with_gradients(network, grads)
            verdict = call.steps.run_backward(call.runner, call.key, call.number, filled)
            found = _gradients(call, 0)
            call.steps.end_backward(call.key, verdict)
            return None, *found


class LaterPart(torch.autograd.Function):
    """A part of a schedule's second half behind the first.

    Its tensors are the result of the part behind it, or for the last part the network's inputs, and
    then parameters.
    """

    @staticmethod
    def forward(ctx: Any, call: AutogradCall, part: int, *tensors: Tensor) -> Any:
        ctx.call, ctx.part = call, part
        return _link(call)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> Any:
        call: AutogradCall = ctx.call
        call.check_unchanged(ctx.part)
        with call.steps.lock:
            call.steps.run_later_part(call.runner, call.key, call.number, ctx.part)
            return None, None, *_gradients(call, ctx.part)


def _link(call: AutogradCall) -> Tensor:
    """A tensor without elements, of which a node of torch's graph can tell another's order."""
    return torch.empty(0, device=call.device)


def _gradients(call: AutogradCall, part: int) -> list[Tensor | None]:
    """The gradients of what the node of a part takes; None where torch has none."""
    is_last = part == len(call.parts) - 1
    first = _input_gradients(call) if is_last else [_link(call)]
    return [*first, *_param_gradients(call, call.taken[part])]


def _input_gradients(call: AutogradCall) -> Sequence[Tensor | None]:
    graph = call.runner.schedule.graph
    return [
        call.runner.read_grad(name, dtype)
        if name in graph.input_grads and (call.reached is None or name in call.reached)
        else None
        for name, dtype in zip(graph.network.inputs, call.dtypes, strict=True)
    ]


def _param_gradients(call: AutogradCall, names: Sequence[str]) -> list[Tensor | None]:
    reached = [name for name in names if call.reached is None or name in call.reached]
    found = call.runner.read_param_grads({name: call.params[name] for name in reached})
    return [found.get(name) for name in names]
