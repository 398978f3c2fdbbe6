"""Gradient probes: steps of a trainer that leave gradients and change nothing, on its plan.

A probe runs the steps of a schedule with settings of the optimizer by which a state tensor of each
parameter takes its gradient, or the parameter moves by it. The host then reads one gradient after
the other, and writes back what it has copied of all tensors before. The device needs no byte more.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from ..ops.expand import Mode
from ..optim import SGD
from ..runtime.probe_calls import HeldMaps, SummedSquares, probe_calls
from ..runtime.runner import Runner
from .accumulation import GradientSums
from .control import write_control
from .core import Core
from .optimizers import Planned, Updated
from .state_changes import Copies, copied_to_host, on_host, write_back

# The factor of a gradient by which a parameter without momentum moves. The parameter's own bits are
# far below those of the sum.
LIFT: Final = 2.0**40


@dataclass(frozen=True, slots=True)
class ProbedStep:
    """A step to probe: its runner, its parameters, and what brings its batch to its buffers."""

    runner: Runner
    mode: Mode
    updated: Updated
    fill: Callable[[], None]
    seed: int
    number: int  # of the step


class GradientProbe:
    """Runs probes of a step of a trainer. Its state is as before behind `unchanged`."""

    def __init__(
        self, core: Core, sums: GradientSums, optimizer: Planned, step: ProbedStep
    ) -> None:
        self._core, self._sums, self._optimizer = core, sums, optimizer
        self._step, self.runner = step, step.runner
        self._before: Copies = []
        self._own: dict[str, Tensor] = {}  # the parameters' copies
        self._held = HeldMaps()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context behind which all tensors of the network and the optimizer are as before."""
        module = self._core.module
        self._own = {name: on_host(param) for name, param in module.params.items()}
        states = (each for name in module.trained() for each in self._sums.tensors_of(name)[1:])
        others = (each.detach() for each in (*states, *module.buffers.values()) if each is not None)
        self._before = [(module.params[name].detach(), own) for name, own in self._own.items()]
        self._before += copied_to_host(others)
        try:
            yield
        finally:
            write_back(self._before)
            self._before, self._own, self._held = [], {}, HeldMaps()

    def run(self, exact: Collection[str], squares: SummedSquares | None = None) -> bool:
        """Run the step, in which the maps `exact` are not rounded; True if its labels are classes.

        With `squares` these are summed meanwhile.
        """
        step = self._step
        write_back(self._before)
        for name in self._core.module.trained():
            for state in self._sums.tensors_of(name)[1:]:
                if state is not None:
                    state.zero_()
        write_control(self._core.control_bytes, self._settings, 1.0, step.seed, step.number)
        network = step.runner.schedule.graph.network
        with self._core.on_device(), self._sums.summing(network, step.mode, step.updated):
            self._core.module.change_state(network.changes)
            step.fill()
            step.runner.probe(probe_calls(self._held, exact, squares))
        return not bool(self._core.control.flag.cpu().any())

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """The gradients that the last probe has left, one after the other."""
        for name in self._step.updated.names:
            param, state, *_ = self._sums.tensors_of(name)
            assert param is not None
            if state is None:
                moved = on_host(param).double() - self._own[name].double()
                yield name, (moved / LIFT).float()
            else:
                yield name, on_host(state)

    @property
    def _settings(self) -> tuple[float, ...]:
        """Settings of the optimizer by which its first state becomes the gradient.

        SGD: no rate, no momentum, no dampening, no decay, the first step, and the gradient's factor
        of 1. Without a momentum buffer, a rate. AdamW: no decay, all of the gradient and none of
        its square, no rate, a root of 1.
        """
        spec = self._optimizer.planned_state.spec
        if isinstance(spec, SGD):
            return (0.0 if spec.states else -LIFT, 0.0, 0.0, 0.0, 1.0, 1.0)
        return (1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0)
