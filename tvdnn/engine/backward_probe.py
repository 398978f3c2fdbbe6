"""Backward probes: what a backward's gradients are with rounded maps, and without.

A user's loop computes the loss, whose gradients of the outputs are known when backward begins. They
do not depend on rounding, because no forward does. A probe runs the forward again, from all that it
began with, and then backward by these gradients. It returns no outputs, draws no random numbers and
reaches no parameter's `grad`. The bytes that the forward began with are kept on the host.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph import Network
from ..runtime.probe_calls import HeldMaps, SummedSquares, probe_calls
from ..runtime.runner import Runner
from ..trace.state.formulas import gradients
from .core import Core
from .module_tensors import ModuleTensors
from .state_changes import Copies, copied_to_host, on_host, write_back


@dataclass(frozen=True, slots=True)
class HeldForward:
    """What a forward began with: copies of what it changes, and the rows of its inputs."""

    state: Copies
    inputs: Mapping[str, tuple[Tensor, ...]]


def state_of(module: ModuleTensors, network: Network) -> Copies:
    """Copies on the host of the buffers and parameters that a forward may change."""
    written = (module.params[name] for name in network.changes.written if name in module.params)
    return copied_to_host((*module.buffers.values(), *written))


def inputs_of(runner: Runner) -> dict[str, tuple[Tensor, ...]]:
    """Copies on the host of the inputs of a forward that begins, as they lie in the arena."""
    names = runner.schedule.graph.network.inputs
    return {name: tuple(map(on_host, runner.inputs(name))) for name in names}


class BackwardProbe:
    """Runs probes of a step that a forward has begun, by the gradients of its outputs.

    The gradients of inputs count as those of parameters do: a user may train by them.
    """

    def __init__(
        self, core: Core, runner: Runner, forward: HeldForward, grads: Mapping[str, Tensor]
    ) -> None:
        self.runner = runner
        self._core, self._forward, self._grads = core, forward, grads
        self._network = runner.schedule.graph.network
        self._has_gradients = _tell(grads.values())
        self._held = HeldMaps()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context behind which parameters and buffers are as before."""
        before = copied_to_host(tensor for tensor, _ in self._forward.state)
        try:
            yield
        finally:
            write_back(before)
            self._held = HeldMaps()

    def run(self, exact: Collection[str], squares: SummedSquares | None = None) -> bool:
        """Run the step, in which the maps `exact` are not rounded.

        True if the gradients of the outputs are finite, and not all of them 0. With `squares` these
        are summed meanwhile.
        """
        change = probe_calls(self._held, exact, squares)
        write_back(self._forward.state)
        with self._core.on_device():
            self._core.module.change_state(self._network.changes)
            self._core.module.copy_params()
            self._fill_inputs()
            self.runner.probe(change, 0)
            fill_grads(self.runner, self._grads)
            self.runner.probe(change, 1)
        return self._has_gradients

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """The gradients that the last probe has left, on the host.

        Those of computed parameters are taken on to the parameters that they are computed of.
        """
        graph = self.runner.schedule.graph
        found: dict[str, Tensor] = {}
        for name in graph.param_grads:
            for reached, gradient in self._by_parameter(name):
                found[reached] = found[reached] + gradient if reached in found else gradient
        yield from found.items()
        for name, buffer in graph.input_grads.items():
            rows = [on_host(view).float().flatten() for _, view in self.runner.outputs(buffer)]
            yield f"input {name}", torch.cat(rows)

    def _by_parameter(self, name: str) -> Iterator[tuple[str, Tensor]]:
        module, computed = self._core.module, self._core.computed.of(self._network)
        gradient = self.runner.param_grad(name, (module.params | computed)[name])
        if name not in computed:
            yield name, on_host(gradient)
            return
        formula, device = self._network.formulas[name], self._core.device
        for reached, term in gradients(formula, module.tensors, device, gradient).items():
            yield reached, on_host(term)

    def _fill_inputs(self) -> None:
        for name, rows in self._forward.inputs.items():
            for view, copy in zip(self.runner.inputs(name), rows, strict=True):
                view.copy_(copy)


def fill_grads(runner: Runner, grads: Mapping[str, Tensor]) -> None:
    """Write the gradients of outputs, by the values that they are of, to their buffers."""
    for buffer, value in runner.schedule.graph.inputs.items():
        if value in grads:
            runner.fill(buffer, grads[value])


def _tell(grads: Iterable[Tensor]) -> bool:
    """Whether errors can be told of these gradients' values: all are finite, and some are not 0."""
    found = [on_host(grad) for grad in grads]
    return all(bool(each.isfinite().all()) for each in found) and any(map(torch.any, found))
