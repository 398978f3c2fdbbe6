"""Core: what Trainer and virtualize share: one network's memory, and its schedules by shape."""

import warnings
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, TypeAlias

import torch
from torch import nn

from ..errors import InputError, UnsupportedOpError
from ..graph import Graph, Network
from ..ops import Settings
from ..ops.expand import CONTROL_NBYTES, graph_variants
from ..ops.operator import Control, FaultRecord
from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Schedule
from ..planner.ir.settings import COPIES, RULES, Choice, Requested, Table, choose
from ..planner.make import Problem, choose_variant
from ..planner.timing.calibrate import Calibration
from ..planner.timing.simulate import simulate
from ..runtime.arena import Arena
from ..runtime.binding import Tensors
from ..runtime.host_slab import Slab
from ..runtime.profiler import profile
from ..runtime.releases import warn_of_untested
from ..runtime.runner import Runner
from ..runtime.tuning_store import find_tuned
from ..trace.guards.module_state import TraceState
from ..trace.modules import HOOKS_ON_ALL, has_hooks_on_all_modules
from ..units import Limit
from .build import (
    DEFAULT_HARDWARE,
    Progress,
    autocast_dtype,
    default_costs,
    resolve_dtype,
    with_chunks,
)
from .computed_weights import Computed
from .drift import Watch
from .module_state import Copies, change_state
from .replan import Measured, Replanner

# The seed, the step's number, the scale, a gap, 7 floats of the optimizer. Behind them on the
# device lie the flag of faults, which kernels set, and at byte 64 the record of the fault.
_CONTROL = Struct("=qqf12x7f")
RECORD_AT: Final = 64
MOST_STATES: Final = 8  # states of the network whose schedules are kept
MANY_CHANGES: Final = 8  # plans made anew by calls in a row, of which a warning tells
LOOKS_OF_A_CALL: Final = 4  # at most
CPU: Final = torch.device("cpu")
EMPTY: Final[Mapping[str, torch.Tensor]] = {}
Updates: TypeAlias = Mapping[str, tuple[torch.Tensor | None, ...]]
UpdatesOf: TypeAlias = Callable[[Network], Updates]  # what passes of a network's step change


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Within which bytes to plan, and what is asked of the way; a budget of "min" is the floor."""

    budget: Limit
    host_budget: int | None
    requested: Requested


@dataclass(frozen=True, slots=True)
class Chosen:
    """The graph of a step, how to plan it and copy, and how its kernels run."""

    graph: Graph
    choice: Choice
    configurations: Table


@dataclass(frozen=True, slots=True)
class Options:
    """How schedules run.

    `kernels` is "triton" or "torch"; the seeds randomize order (CPU) or delays (GPU) for tests, and
    the `clock` are the costs of the machine that the CPU plays. With `feedback` plans follow what
    the first steps take, where costs are measured; with `sized` chunk sizes are not the tuned ones.
    """

    kernels: str | None = None
    order_seed: int | None = None
    delay_seed: int | None = None
    costs: Costs | None = None
    slab: Slab | None = None
    progress: Progress | None = None
    feedback: bool = True
    clock: Costs | None = None
    sized: bool = False


def asked_for(policy: str | None, lead: int | None, copies: str | None) -> Requested:
    """What is asked of the way to plan and copy. Raises InputError for a way that is not known."""
    if copies is not None and copies not in COPIES:
        raise InputError(f"copies {copies!r} are not known; choose {' or '.join(COPIES)}")
    return Requested(policy, lead, copies)


class Core:
    """Arena, slab, control block and runners of one network.

    All its runners share the arena: one step at a time. `constants` are tensors, beside the
    parameters, that passes read by name. `device` is where a network without parameters computes.
    """

    def __init__(
        self,
        net: nn.Module,
        limits: PlanRequest,
        options: Options,
        constants: Mapping[str, torch.Tensor] = EMPTY,
        device: torch.device = CPU,
    ) -> None:
        warn_of_untested()
        self._net, self._constants = net, constants
        self._trace_state = TraceState(net)
        self.state = self._trace_state.now()
        self.params, self.buffers = dict(net.named_parameters()), dict(net.named_buffers())
        self.device = one_device(self.params, device)
        self._copies = copies_of(self.params)
        self.limits, self.options = limits, options
        cuda = self.device.type == "cuda"
        self.kernels = options.kernels or ("triton" if cuda else "torch")
        self.computed = Computed(self.device)
        self.arena = Arena(self.device)
        self.slab = options.slab or Slab(pinned=cuda)
        self.control_bytes, self.control = make_control(self.device)
        self.costs: dict[Hashable, Costs] = {}
        self.runners: dict[Hashable, Runner] = {}
        self._chosen: dict[Hashable, Chosen] = {}
        self._replanner = Replanner()
        self._watches: dict[Hashable, Watch] = {}
        self._keys: dict[int, set[Hashable]] = {self.state: set()}  # by state, the latest last
        self.measures_next = False
        self.closed = False
        self.preparations = 0  # after each, what lay in the arena is gone
        self._addresses = self._addresses_now()
        self._held: dict[str, torch.Tensor] = {}  # copies of buffers, which passes read
        self._before: dict[str, torch.Tensor] = {}  # of what forwards change, as it was before
        self._newest, self._looks, self._changes = -1, 0, 0  # state, since a change, in a row

    def look(self) -> int:
        """The number of the network's present state; keys of runners hold it.

        After a change of what a trace depends on the number is another. Schedules for parameters
        and buffers that were replaced or have moved are forgotten. Raises InputError where the
        parameters lie on another device than before, UnsupportedOpError where hooks on all modules
        were registered.
        """
        if has_hooks_on_all_modules():
            raise UnsupportedOpError(HOOKS_ON_ALL)
        state = self._trace_state.now()
        moved = self._addresses != self._addresses_now()
        if moved:
            state = self._trace_state.refresh()
        self._looks += 1
        if moved or state != self.state:
            self._take_over(moved)
            self._note_change(state)
            self.state = state
        return state

    def _note_change(self, state: int) -> None:
        """Warn where the state is a new one in many calls, one behind the other."""
        close = self._looks <= LOOKS_OF_A_CALL
        self._changes = (self._changes + 1 if close else 1) if state > self._newest else 0
        self._newest, self._looks = max(state, self._newest), 0
        if self._changes == MANY_CHANGES:
            warnings.warn(
                f"the network was planned anew in {MANY_CHANGES} calls, one behind the other: each"
                " found another setting, or another value outside the network that its forward"
                " reads; keep what changes so often in a buffer",
                stacklevel=2,
            )

    def grad_mode(self, graded: bool) -> bool:
        """Whether a step is traced with gradients: a forward that has none may ask for the mode."""
        return graded or (self._trace_state.asks_grad_mode and torch.is_grad_enabled())

    def _take_over(self, moved: bool) -> None:
        """Use the parameters and buffers that the network has now."""
        params, buffers = dict(self._net.named_parameters()), dict(self._net.named_buffers())
        if not moved and _same(params, self.params) and _same(buffers, self.buffers):
            return
        device = one_device(params, self.device)
        if device != self.device:
            raise InputError(
                f"the parameters lie on {device} and lay on {self.device} when this engine was"
                " made; move them back or make a new one"
            )
        self._suspend()
        self._forget()
        self.params, self.buffers, self._copies = params, buffers, copies_of(params)
        self._addresses = self._addresses_now()

    def runner(
        self,
        key: Hashable,
        chosen: Callable[[], Chosen],
        updates: UpdatesOf,
        *,
        begins: bool = False,
    ) -> Runner:
        """The runner for `key`, made when first asked for.

        `key` holds the network's state, as `look` told it last. Where a step `begins`, a plan that
        was made anew meanwhile takes the place of the present one.
        """
        self._note(key)
        if key not in self.runners:
            self.runners[key] = self._make(key, chosen(), updates)
            self._watch(key)
        elif begins:
            self._replace_plan(key, updates)
        if self.measures_next:
            self._watches[key] = Watch(self.runners[key], None)
            self.measures_next = False
        with self.on_device():
            self._fit(self.runners[key].schedule)
            self.preparations += self.runners[key].refresh()
        return self.runners[key]

    def _note(self, key: Hashable) -> None:
        """Make the present state the latest; forget the schedules of the one used longest ago."""
        self._keys[self.state] = self._keys.pop(self.state, set()) | {key}
        if len(self._keys) > MOST_STATES:
            for old in self._keys.pop(next(iter(self._keys))):
                runner = self.runners.pop(old, None)
                if runner is not None:
                    runner.close()
                for kept in (self.costs, self._chosen, self._watches):
                    kept.pop(old, None)
                self._replanner.forget(old)

    def run(self, key: Hashable, half: int = 0) -> None:
        """Run one half of the step of the runner for `key`, under watch at first."""
        watch = self._watches.get(key)
        if watch is None:
            self.runners[key].run(half)
            return
        watch.run(half)
        if watch.done:
            del self._watches[key]
        if watch.measured is not None:
            schedule, costs = self.runners[key].schedule, self.costs[key]
            self._replanner.keep(key, Measured(schedule, costs, watch.measured))
            if not watch.asked:
                self._ask(key)

    def change_state(self, runner: Runner) -> None:
        """Change parameters and buffers as one forward does by itself; call ahead of each."""
        changes = runner.schedule.graph.network.changes
        if not changes.calls:
            return
        change_state(changes, self.params | self.buffers | self._held, self.device)

    def state_before(self, runner: Runner) -> Copies:
        """Copies of what `change_state` writes, for a step that fails; until the next such call."""
        found: Copies = []
        for name in runner.schedule.graph.network.changes.written:
            tensor = (self.params if name in self.params else self.buffers)[name].detach()
            if name not in self._before:
                with torch.inference_mode(False):  # later calls may train
                    self._before[name] = torch.empty_like(tensor)
            found.append((tensor, self._before[name].copy_(tensor)))
        return found

    def feedback(self, key: Hashable) -> Calibration | None:
        """The step that was measured last for `key` beside its prediction."""
        return self._replanner.feedback(key)

    @property
    def replanning(self) -> bool:
        """Whether a plan is being made anew, or waits for a step that takes it over."""
        return bool(self._replanner.pending)

    def wait_for_plans(self) -> tuple[Hashable, ...]:
        """Wait until no plan is being made anew; tell the keys for which one was.

        The next step for such a key takes the new plan over.
        """
        self._replanner.wait()
        present = self._keys.get(self.state, ())
        return tuple(key for key in self._replanner.pending if key in present)

    def _watch(self, key: Hashable) -> None:
        """Watch the first steps of the runner for `key`, where these are predicted and timed."""
        runner, costs = self.runners[key], self.costs[key]
        if self.options.feedback and costs.measured and runner.measures:
            self._watches[key] = Watch(runner, simulate(runner.schedule, costs).step_s)

    def _ask(self, key: Hashable) -> None:
        """Have the plan for `key` made anew, within the bytes of the slab as it is.

        To pin more host memory would stop training for seconds.
        """
        choice, given = self._chosen[key].choice, self.limits.host_budget
        host_budget = self.slab.nbytes if given is None else min(given, self.slab.nbytes)
        self._replanner.ask(key, choice.policy, choice.lead, host_budget)

    def _replace_plan(self, key: Hashable, updates: UpdatesOf) -> None:
        """Take over what was planned anew for `key`, if it is there: costs, perhaps a plan."""
        answer = self._replanner.answer(key)
        if answer is None:
            return
        self.costs[key] = answer.costs
        if answer.schedule is not None:
            present = self.runners[key]
            self._synchronize()  # the step before may still run
            present.close()
            self.runners[key] = self._runner_of(answer.schedule, self._chosen[key], updates)
            self._replanner.taken_over(key, present.schedule)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def dtype_now(self, asked: str | None) -> str:
        """The compute type of a call: as asked, else of the autocast region or the parameters."""
        kind = self.device.type
        if asked is None and torch.is_autocast_enabled(kind):
            return autocast_dtype(torch.get_autocast_dtype(kind))
        if asked is None and self._copies:
            return "bf16"
        return resolve_dtype(asked, self.device)

    def copy_params(self) -> None:
        """Bring the float32 copies of parameters of another type up to date."""
        if self._copies:
            given = [self.params[name].detach() for name in self._copies]
            torch._foreach_copy_(list(self._copies.values()), given)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name."""
        return {**self.buffers, **self.params}

    def on_device(self) -> AbstractContextManager[object]:
        """Makes the network's GPU the present one, where it has one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _fit(self, schedule: Schedule) -> None:
        """Grow arena and slab to what `schedule` takes, after all that hold on to the old ones."""
        small = self.arena.nbytes < schedule.arena_nbytes or self.slab.nbytes < schedule.slab_nbytes
        if small:
            self._suspend()
            self.arena.reserve(max(1, schedule.arena_nbytes))
            self.slab.reserve(max(1, schedule.slab_nbytes))

    def _suspend(self) -> None:
        for runner in self.runners.values():
            runner.suspend()

    def drop(self) -> None:
        """Forget all schedules and give back the arena; they are planned again when next used."""
        for runner in self.runners.values():
            runner.close()
        self._forget()
        self.arena.close()

    def _forget(self) -> None:
        self.runners.clear()
        self._held.clear()
        self._before.clear()
        self._watches.clear()
        self._replanner.drop_all()

    def close(self) -> None:
        """Give back arena and graphs, and the slab where it is the core's own."""
        self.drop()
        self.closed = True
        if self.options.slab is None:
            with self.on_device():
                self.slab.close()

    def report(self, stage: str, fraction: float) -> None:
        if self.options.progress is not None:
            self.options.progress(stage, fraction)

    def chosen(self, network: Network, settings: Settings) -> Chosen:
        """The graph of the network and how it runs, by what is asked and by what tuning found.

        Chunk sizes that `settings` has are kept.
        """
        tuned = find_tuned(self.hardware, network, settings.dtype)
        if tuned is not None and not self.options.sized:
            settings = with_chunks(settings, tuned.chunks)
        found = self.computed.nbytes(network, settings.mode, self.tensors)
        reserve = settings.reserve + network.changes.nbytes
        settings = replace(settings, reserve=reserve, computed_nbytes=found)
        choice = choose(tuned, self.limits.budget, self.limits.requested)
        variants = graph_variants(network, settings)
        graph = choose_variant(variants, self.limits.budget, fused=settings.fuse)
        return Chosen(graph, choice, (tuned and tuned.configurations) or RULES)

    @property
    def hardware(self) -> str:
        """The machine by whose costs steps are planned."""
        if self.options.costs is not None:
            return self.options.costs.hardware
        cuda = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if cuda else DEFAULT_HARDWARE

    def _make(self, key: Hashable, chosen: Chosen, updates: UpdatesOf) -> Runner:
        self._chosen[key] = chosen
        self.costs[key], budget = self._find_costs(chosen)
        schedule = self._plan(chosen, self.costs[key], budget)
        return self._runner_of(schedule, chosen, updates)

    def _plan(self, chosen: Chosen, costs: Costs, budget: int | None) -> Schedule:
        problem = Problem(chosen.graph, costs, budget, self.limits.host_budget)
        choice, progress = chosen.choice, self.options.progress
        return problem.schedule(choice.policy, lead=choice.lead, progress=progress)

    def _runner_of(self, schedule: Schedule, chosen: Chosen, updates: UpdatesOf) -> Runner:
        network = chosen.graph.network
        params = {n: self._copies.get(n, param.detach()) for n, param in self.params.items()}
        params |= {**self._constants, **self._copies_held(schedule), **self.computed.of(network)}
        tracked = {name: (buffer,) for name, buffer in self.buffers.items()}
        return Runner(
            schedule,
            Tensors(params | self.buffers, {**updates(network), **tracked}, self.control),
            kernels=self.kernels,
            arena=self.arena,
            slab=self.slab,
            order_seed=self.options.order_seed,
            delay_seed=self.options.delay_seed,
            clock=self.options.clock,
            copies=chosen.choice.copies,
            configurations=chosen.configurations,
            progress=self.options.progress,
        )

    def _copies_held(self, schedule: Schedule) -> dict[str, torch.Tensor]:
        """The copies of buffers that a schedule's passes read; schedules share them."""
        held = schedule.graph.network.changes.held
        for copy, name in held.items():
            if copy not in self._held:
                self._held[copy] = torch.empty_like(self.buffers[name])
        return {copy: self._held[copy] for copy in held}

    def _find_costs(self, chosen: Chosen) -> tuple[Costs, int | None]:
        """Costs to plan with, and the bytes of the budget."""
        costs = self.options.costs or default_costs(chosen.graph)
        budget = self._budget_nbytes(chosen, costs)
        if self.options.costs is not None or self.device.type != "cuda":
            return costs, budget
        measured = self._profile(chosen, budget)
        floor = self._budget_nbytes(chosen, measured)
        return measured, budget if budget is None or floor is None else max(budget, floor)

    def _budget_nbytes(self, chosen: Chosen, costs: Costs) -> int | None:
        problem = Problem(chosen.graph, costs, self.limits.budget)
        return problem.budget_nbytes(chosen.choice.policy)

    def _profile(self, chosen: Chosen, budget: int | None) -> Costs:
        graph, limit = chosen.graph, None
        if budget is not None:  # the scratch bytes take the arena's place
            limit = budget - graph.fixed_nbytes
            self._suspend()
            self.arena.close()
        with self.on_device():
            return profile(
                graph,
                device=self.device,
                kernels=self.kernels,
                limit=limit,
                copies=chosen.choice.copies,
                configurations=chosen.configurations,
                progress=self.options.progress,
            )

    def _addresses_now(self) -> list[int]:
        """Where each parameter and buffer lies."""
        address = torch.Tensor.data_ptr
        return [*map(address, self.params.values()), *map(address, self.buffers.values())]


def copies_of(params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Empty float32 tensors like the parameters of another type."""
    return {
        name: torch.empty_like(param, dtype=torch.float32, requires_grad=False)
        for name, param in params.items()
        if param.dtype != torch.float32
    }


def _same(now: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> bool:
    """Whether both hold the same tensors under the same names."""
    return now.keys() == before.keys() and all(now[name] is before[name] for name in now)


def one_device(params: Mapping[str, torch.Tensor], default: torch.device = CPU) -> torch.device:
    """The device of all parameters; raises InputError where they lie on several."""
    devices = {param.device for param in params.values()}
    if len(devices) > 1:
        raise InputError(
            f"the parameters lie on {sorted(map(str, devices))}; move the network to one device"
        )
    return next(iter(devices), default)


def make_control(device: torch.device) -> tuple[torch.Tensor, Control]:
    """The control block's bytes, and its parts."""
    block = torch.zeros(CONTROL_NBYTES, dtype=torch.uint8, device=device)
    floats, words = block.view(torch.float32), block.view(torch.int64)
    first = RECORD_AT // words.element_size()
    faults = FaultRecord(step=words[1:2], record=words[first : first + 2])
    return block, Control(floats[8:16], scale=floats[4:5], seed=words[:1], faults=faults)


def write_control(
    block: torch.Tensor, settings: tuple[float, ...], scale: float, seed: int, step: int = 1
) -> None:
    """Write the next step's settings, on the current stream before the replay that reads them.

    Steps are numbered from 1. The flag behind the seven settings, and the record, are the device's.
    """
    floats = (*settings, *(0.0,) * 7)[:7]
    packed = bytearray(_CONTROL.pack(seed, step, scale, *floats))
    block[: _CONTROL.size].copy_(torch.frombuffer(packed, dtype=torch.uint8), non_blocking=True)
