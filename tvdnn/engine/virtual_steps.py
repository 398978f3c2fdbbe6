"""The steps of a virtualized network: planned by the inputs of a call, run in two halves."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..errors import EngineError, InputError
from ..graph import Network
from ..ops import Settings
from ..ops.builder import Ranks
from ..ops.eager_fallback import opaque_nbytes
from ..ops.expand import Mode
from ..planner.timing.calibrate import Calibration
from ..runtime.runner import Runner
from ..trace.trace import trace
from .backward_parts import BackwardPart, backward_parts, bucket_nbytes, one_part
from .backward_probe import BackwardProbe, HeldForward, fill_grads, inputs_of, state_of
from .build import autocast_dtype, resolve_dtype
from .control import write_control
from .core import Core, Updates
from .engine_request import EngineRequest, Resolved
from .process_group import TrainingGroup, grouped
from .rounding_check import judge
from .rounding_plans import RoundingReport
from .rounding_search import Verdict
from .state_changes import restored_after_failure
from .synchronized_group import check_alone, synchronized_group, synchronizes

# Types of inputs with more digits than networks compute with.
WIDER: Final = (torch.float64, torch.complex64, torch.complex128)


@dataclass(frozen=True, slots=True)
class StepKey:
    """What one schedule is made for."""

    shapes: tuple[tuple[int, ...], ...]
    mode: Mode
    state: int  # the number of the state of the network
    input_grads: frozenset[int]  # numbers of the inputs whose gradients are computed
    dtype: str
    grad_mode: bool  # whether forward is traced with gradients


class VirtualSteps:
    """Plans and runs the steps of `net`. One forward may be open at a time.

    The maps of an open forward lie in the arena until its backward has run. Several threads share
    one arena, under `lock`.
    """

    def __init__(self, net: nn.Module, settings: Settings, requested: EngineRequest) -> None:
        self._net, self._settings, self._requested = net, settings, requested
        self.core: Core | None = None
        self.last: StepKey | None = None  # of the schedule that was used, or planned, last
        self.lock = threading.RLock()
        self._open = 0  # the number of the open forward
        self._next_phase = 0  # of its schedule
        self._bucket_nbytes: int | None = None  # of gradients that are handed over together
        self._parts = WeakKeyDictionary[Runner, tuple[BackwardPart, ...]]()
        self._forwards = 0
        self._held: HeldForward | None = None  # of a step that is measured
        self._grouped: dict[str, Any] = {}  # fields of the processes over which layers normalize
        self._planned_alone = False  # layers that may normalize over several

    def core_now(self) -> Core:
        """The core, made when first asked for."""
        if self.core is None:
            group = None if self._grouped else synchronized_group(self._net)
            if group is not None:
                together = TrainingGroup(group, self._requested.device)
                self._grouped = grouped(together, self._requested.host_budget)
            with torch.inference_mode(False):
                self.core = Core(self._net, replace(self._requested, **self._grouped))
        return self.core

    def check_empty(self) -> None:
        """Raise EngineError for no samples where other processes wait for this one's statistics."""
        if self._net.training and self.core_now().requested.group is not None:
            raise EngineError(
                "a batch of no samples has no statistics, for which SyncBatchNorm of the other"
                " processes waits; give each process one sample at least"
            )

    def last_runner(self) -> Runner:
        """The runner that was used, or planned, last. Raises EngineError where there is none."""
        if self.core is None or self.last not in self.core.runners:
            raise EngineError("nothing is planned yet; call the module, or prepare(*inputs), first")
        return self.core.runners[self.last]

    def feedback(self) -> Calibration | None:
        """The step that was measured last on inputs like the last, beside its prediction."""
        return None if self.core is None else self.core.new_plans.feedback(self.last)

    def rounding(self) -> RoundingReport | None:
        """What was measured last of gradients by rounded maps, on inputs like the last."""
        return None if self.core is None else self.core.new_plans.rounding_report(self.last)

    def settle(self) -> None:
        """Wait for new plans, and take them over unless a forward waits for its backward."""
        core = self.core
        if core is None:
            return
        keys: Iterable[Any] = core.wait_for_plans()
        for key in keys:
            if not self._open:
                core.runner(key, partial(self._resolved, key), _no_updates, begins=True)

    def close(self) -> None:
        """Give back arena, graphs and slab."""
        self._open, self._held = 0, None
        if self.core is not None:
            self.core.close()
            self.core = None

    def key(self, inputs: tuple[Tensor, ...], *, graded: bool) -> StepKey:
        """The key of a step on these inputs, with gradients where `graded`."""
        if self._planned_alone:
            check_alone(self._net)
        wants = frozenset(i for i, x in enumerate(inputs) if graded and x.requires_grad)
        mode = Mode.AUTOGRAD if graded else Mode.INFER
        shapes, core = tuple(tuple(x.shape) for x in inputs), self.core_now()
        state, dtype = core.look(), _dtype_now(core, self._requested.dtype)
        return StepKey(shapes, mode, state, wants, dtype, core.states.grad_mode(graded))

    def runner(self, key: StepKey, *, begins: bool = False) -> Runner:
        """The runner for a key, planned and captured when first asked for."""
        core = self.core_now()
        before, is_open = core.preparations, self._open
        self._open = 0  # planning and capture take the arena, and with it an open forward's maps
        with torch.inference_mode(False):  # what is made here serves later training steps, too
            runner = core.runner(key, partial(self._resolved, key), _no_updates, begins=begins)
        if core.preparations == before:
            self._open = is_open
        self.last = key
        return runner

    def _resolved(self, key: StepKey) -> Resolved:
        core = self.core_now()
        core.first_step("tracing", 0.0)
        inputs = tuple(
            torch.empty(shape, device="meta", requires_grad=number in key.input_grads)
            for number, shape in enumerate(key.shapes)
        )
        network = trace(self._net, inputs, opaque=self._requested.opaque, graded=key.grad_mode)
        group = core.requested.group
        if group is None and synchronizes(network):
            check_alone(self._net)
            self._planned_alone = True
        settings = replace(
            self._settings,
            dtype=key.dtype,
            mode=key.mode,
            input_grads=frozenset(network.inputs[i] for i in key.input_grads),
            opaque_nbytes=opaque_nbytes(network, core.device),
            ranks=None if group is None else Ranks(group.size),
        )
        return core.resolve(network, settings)

    def run_forward(
        self, runner: Runner, key: StepKey, inputs: tuple[Tensor, ...]
    ) -> tuple[int, tuple[Tensor, ...]]:
        """Run the first half; returns this forward's number and its outputs."""
        core = self.core_now()
        network = runner.schedule.graph.network
        seed = int(torch.randint(0, 2**31, ()).item())  # torch's generator, as its dropout does
        write_control(core.control_bytes, (), 1.0, seed)
        self._forwards += 1
        self._open = self._forwards
        before = core.module.state_before(network.changes)
        is_due = core.new_plans.rounding.is_due(key, runner)
        state = state_of(core.module, network) if is_due else []
        with core.on_device(), restored_after_failure(before):
            core.module.change_state(network.changes)
            core.module.copy_params()
            for name, value in zip(network.inputs, inputs, strict=True):
                runner.fill(name, _checked(name, value, core.device))
            self._held = HeldForward(state, inputs_of(runner)) if is_due else None
            core.run(key, 0)
            self._next_phase = 1
            form = _output_form(inputs[0])
            outputs = tuple(runner.read(name, **form) for name in network.outputs)
        return self._open, outputs

    def cut_backward(self, runner: Runner) -> tuple[BackwardPart, ...]:
        """The parts of the runner's second half, into which it is cut.

        There is one, unless DistributedDataParallel has called the network. Steps whose gradients
        by rounded maps are measured are not cut.
        """
        nbytes = bucket_nbytes() or self._bucket_nbytes
        if nbytes is None or self._requested.allowed is not None:
            return one_part(runner.schedule)
        if nbytes != self._bucket_nbytes:
            self._bucket_nbytes = nbytes
            self._parts.clear()
        if runner not in self._parts:
            self._parts[runner] = tuple(backward_parts(runner.schedule, nbytes))
            runner.cut([part.start for part in self._parts[runner][1:]])
        return self._parts[runner]

    def run_backward(
        self, runner: Runner, key: StepKey, number: int, grads: Sequence[Tensor]
    ) -> Verdict | None:
        """Run the second half, or its first part, for the forward `number`.

        Where the step is measured it returns a verdict for `end_backward`, if there is one. The
        gradients are then exact unless it drops no codec. Raises EngineError where the maps of the
        forward are gone.
        """
        self._begin_phase(runner, number, 1)
        totals: dict[str, Tensor] = {}
        for output, grad in zip(runner.schedule.graph.network.outputs, grads, strict=True):
            name = f"grad {output}"  # an output may be returned twice
            totals[name] = totals[name] + grad if name in totals else grad
        if self._held is not None:
            return self._judge(BackwardProbe(self.core_now(), runner, self._held, totals))
        fill_grads(runner, totals)
        self.core_now().run(key, 1)
        return None

    def run_later_part(self, runner: Runner, key: StepKey, number: int, part: int) -> None:
        """Run a part of the second half behind the first, for the forward `number`.

        Raises EngineError where the maps of the forward are gone.
        """
        self._begin_phase(runner, number, 1 + part)
        self.core_now().run(key, 1 + part)

    def _begin_phase(self, runner: Runner, number: int, phase: int) -> None:
        """Begin a phase of the second half, whose last one closes the forward."""
        if self._open != number or self._next_phase != phase:
            raise EngineError(
                "the maps of this forward are gone: another forward of this network ran after it, "
                "or its backward has run already; call backward once after each forward, or "
                "virtualize a second copy (retain_graph cannot help)"
            )
        self._next_phase += 1
        if self._next_phase >= len(runner.phases):
            self._open = 0

    def _judge(self, probe: BackwardProbe) -> Verdict | None:
        """Measure a step; then run it so that no codec over the limit, or not judged, rounds."""
        limit = self.core_now().new_plans.rounding.limit
        assert limit is not None
        verdict = judge(probe, limit)
        is_within = verdict is not None and not verdict.dropped
        with probe.unchanged():
            probe.run(() if is_within else probe.runner.schedule.plan.rounded)
        return verdict

    def end_backward(self, key: StepKey, verdict: Verdict | None) -> None:
        """Note what a measured step has found, once its gradients are read out of the arena."""
        if self._held is None:
            return
        core, self._held = self.core_now(), None
        if verdict is not None:
            core.judged(key, verdict, _no_updates)
        core.follow(key)


def _dtype_now(core: Core, requested: str | None) -> str:
    """The compute type of a call: as requested, else of the autocast region or the parameters."""
    kind = core.device.type
    if requested is None and torch.is_autocast_enabled(kind):
        return autocast_dtype(torch.get_autocast_dtype(kind))
    if requested is None and core.module.copies:
        return "bf16"
    return resolve_dtype(requested, core.device)


def _no_updates(_: Network) -> Updates:
    """No tensors: passes of a step in a user's loop update no parameter."""
    return {}


def _checked(name: str, value: Tensor, device: torch.device) -> Tensor:
    if value.device != device:
        raise InputError(
            f"{name} lies on {value.device}, the network on {device}; move one of them"
        )
    if value.dtype in WIDER:
        found = str(value.dtype).removeprefix("torch.")
        raise InputError(f"{name} is {found}, and networks compute in float32 at most; cast it")
    return value.detach()


def _output_form(x: Tensor) -> dict[str, Any]:
    """Type and memory format of outputs: the input's, under autocast the region's type."""
    kind = x.device.type
    autocast = torch.is_autocast_enabled(kind)
    last = x.dim() == 4 and not x.is_contiguous()
    last = last and x.is_contiguous(memory_format=torch.channels_last)
    return {
        "dtype": torch.get_autocast_dtype(kind) if autocast else x.dtype,
        "memory_format": torch.channels_last if last else torch.contiguous_format,
    }
