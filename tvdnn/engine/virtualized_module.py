"""Virtualized: a module whose steps are planned, for a training loop of the user's own."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain, zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import EngineError, InputError
from ..ops import Settings
from ..planner.ir.plan import Plan
from ..planner.ir.schedule import Schedule
from ..planner.timing.calibrate import Calibration
from ..trace.guards.inputs import check_inputs
from .autograd_step import AutogradCall, run_step
from .engine_request import EngineRequest
from .gradient_checks import check_saving
from .rounding_plans import RoundingReport
from .virtual_steps import VirtualSteps


class Virtualized(nn.Module):
    """A network whose feature maps live in a planned arena.

    It shares the registries of the network that it was made from: parameters, buffers, submodules,
    their names and state_dict are the network's own. One forward may be open at a time: its maps
    lie in the arena until its backward has run.
    """

    _net: nn.Module

    def __init__(self, net: nn.Module, settings: Settings, requested: EngineRequest) -> None:
        super().__init__()
        _break_compiled_graphs()
        for registry in ("_parameters", "_buffers", "_modules"):
            self.__dict__[registry] = net.__dict__[registry]
        self.__dict__["_net"] = net
        self.training = net.training
        self._settings, self._requested = settings, requested
        self._steps = VirtualSteps(net, settings, requested)

    @property
    def schedule(self) -> Schedule:
        """The schedule that was used, or planned, last."""
        return self._steps.last_runner().schedule

    @property
    def plan(self) -> Plan:
        """The plan: where each feature map is kept, and why."""
        return self.schedule.plan

    @property
    def first_step(self) -> Mapping[str, float]:
        """Seconds from `virtualize` to the end of the first step, by part: what one waits for."""
        return self._steps.core_now().first_step.seconds

    @property
    def feedback(self) -> Calibration | None:
        """The step that was measured last on inputs like the last, beside its prediction."""
        return self._steps.feedback()

    @property
    def rounding(self) -> RoundingReport | None:
        """What was measured last of gradients by rounded maps, on inputs like the last.

        None where no map is rounded, or was so far.
        """
        return self._steps.rounding()

    def measure_next(self) -> None:
        """Measure the next step, on a GPU; `feedback` then compares it with its prediction."""
        self._steps.core_now().measures_next = True

    @property
    def replanning(self) -> bool:
        """Whether a new plan is being made in another process, or waits for the next forward."""
        core = self._steps.core
        return core is not None and bool(core.new_plans.pending)

    def settle(self) -> None:
        """Wait for new plans that follow from measured steps.

        They are taken over at once; while a forward waits for its backward, by the next forward.
        """
        self._steps.settle()

    def prepare(self, *inputs: Tensor) -> "Virtualized":
        """Plan and capture for inputs of these shapes; returns itself."""
        self._steps.runner(self._steps.key(inputs, graded=self._has_gradients(inputs)))
        return self

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """The network's outputs, copied out of the arena; its own for a batch of no samples.

        Arguments are as the network's forward has them. Under torch.compile this is a graph break.
        """
        inputs = self._tensors(arguments, named)
        if any(x.dim() > 0 and len(x) == 0 for x in inputs):
            self._steps.check_empty()
            return self._net(*inputs)
        if torch._C._are_functorch_transforms_active():
            raise EngineError(
                "transforms of torch.func (vmap, grad, jvp) do not reach into a virtualized"
                " network; call backward or torch.autograd.grad, or use the network itself"
            )
        with self._steps.lock:
            return self._stepped(inputs)

    def _stepped(self, inputs: tuple[Tensor, ...]) -> Any:
        """The outputs of a step's first half, whose second half is in torch's graph.

        Inside a forward of DistributedDataParallel that half is in parts, each for a bucket.
        """
        graded = self._has_gradients(inputs) and torch.is_grad_enabled()
        if graded:
            check_saving()
        key = self._steps.key(inputs, graded=graded)
        runner = self._steps.runner(key, begins=True)
        core, graph = self._steps.core_now(), runner.schedule.graph
        network = graph.network
        check_inputs(network, inputs, key.input_grads)
        computed: dict[str, Tensor] = {}
        if network.formulas:
            with core.on_device(), torch.set_grad_enabled(graded):
                computed = core.computed.values(network, core.module.tensors, graph.param_grads)
        given = {**core.module.params, **computed}.items()
        trained = {name: each for name, each in given if graded and each.requires_grad}
        params = {**core.module.params, **core.computed.of(network)}
        parts = self._steps.cut_backward(runner)
        form = inputs[0].device, tuple(x.dtype for x in inputs)
        call = AutogradCall(self._steps, runner, key, inputs, *form, params, tuple(trained), parts)
        return network.gather(run_step(call, trained))

    def _tensors(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Tensor, ...]:
        """The tensors among the arguments, in order. Raises InputError for other arguments."""
        if not named and all(isinstance(each, Tensor) for each in arguments):
            return arguments
        bound = inspect.signature(self._net.forward).bind(*arguments, **named)
        parameters = bound.signature.parameters.values()
        values = list(bound.arguments.items())
        while values and _is_default(
            values[-1][1], bound.signature.parameters[values[-1][0]].default
        ):
            values.pop()
        places = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        for (name, value), place in zip_longest(values, places[: len(values)]):
            if not isinstance(value, Tensor) or name != place:
                raise InputError(
                    f"argument {name} is {repr(value)[:60]}; a virtualized network takes tensors,"
                    " without gaps between them, and other arguments as by default"
                )
        return tuple(value for _, value in values)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Virtualized":
        """A copy of the parameters with the same settings; it plans anew at its first call."""
        requested = replace(self._requested, slab=None, first_step=None)
        return Virtualized(copy.deepcopy(self._net, memo), self._settings, requested)

    def __reduce__(self) -> tuple[Any, ...]:
        own: dict[str, Any] = dict.fromkeys(("slab", "costs", "progress", "first_step", "clock"))
        requested = replace(self._requested, **own)
        return Virtualized, (self._net, self._settings, requested)

    def train(self, mode: bool = True) -> "Virtualized":
        super().train(mode)
        self._net.training = mode
        return self

    def close(self) -> None:
        """Give back arena, graphs and slab."""
        self._steps.close()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Virtualized":
        """Drop all plans, and move or cast the network's parameters."""
        self.close()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _has_gradients(self, inputs: Iterable[Tensor]) -> bool:
        return any(each.requires_grad for each in chain(inputs, self.parameters()))


@cache
def _break_compiled_graphs() -> None:
    """Keep torch.compile out of forwards, from the first virtualized network on.

    The call imports torch's compiler, which takes as long as torch. Trainers do not need it.
    """
    forward: Any = torch.compiler.disable(Virtualized.forward)
    Virtualized.forward = forward  # type: ignore[method-assign]


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, Tensor):
        return False
    return value is default or (type(value) is type(default) and bool(value == default))
