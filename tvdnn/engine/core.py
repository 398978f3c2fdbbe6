"""Core: the memory of one network and its schedules by shape, for Trainer and virtualize."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import torch
from torch import nn

from ..errors import UnsupportedOpError
from ..graph import Network
from ..ops import Settings
from ..ops.expand import expand
from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Schedule
from ..planner.ir.settings import RULES, choose
from ..planner.make import Problem
from ..planner.timing.simulate import simulate
from ..runtime.binding import Tensors
from ..runtime.pages import maps_pages
from ..runtime.releases import warn_of_untested
from ..runtime.runner import Runner
from ..runtime.tuning_store import find_tuned
from ..trace.modules import HOOKS_ON_ALL, has_hooks_on_all_modules
from .build import DEFAULT_HARDWARE, with_chunks
from .computed_weights import ComputedParameters
from .control import make_control
from .engine_request import EngineRequest, Resolved
from .first_step import FirstStep
from .module_tensors import ModuleTensors
from .network_states import NetworkStates
from .new_plans import NewPlans
from .rounding_search import Verdict
from .shared_plan import plan_together
from .step_costs import StepCosts
from .step_memory import StepMemory
from .step_watch import StepWatch

EMPTY: Final[Mapping[str, torch.Tensor]] = {}
Updates: TypeAlias = Mapping[str, tuple[torch.Tensor | None, ...]]
UpdatesOf: TypeAlias = Callable[[Network], Updates]  # the tensors that a step's passes change


class Core:
    """Arena, slab, control block and runners of one network.

    All its runners share the arena: one step at a time. `constants` are tensors, beside the
    parameters, that passes read by name.
    """

    def __init__(
        self,
        net: nn.Module,
        requested: EngineRequest,
        constants: Mapping[str, torch.Tensor] = EMPTY,
    ) -> None:
        warn_of_untested()
        self._constants = constants
        self.states = NetworkStates(net)
        self.module = ModuleTensors(net, requested.device)
        self.device = self.module.device
        self.requested = requested
        self.first_step = requested.first_step or FirstStep(requested.progress)
        cuda = self.device.type == "cuda"
        self.kernels = requested.kernels or ("triton" if cuda else "torch")
        self.computed = ComputedParameters(self.device)
        self.memory = StepMemory(requested, self.device)
        self._step_costs = StepCosts(
            requested, self.device, self.kernels, self.memory, self.first_step, self._suspend
        )
        self.control_bytes, self.control = make_control(self.device, requested.group)
        self.costs: dict[Hashable, Costs] = {}
        self.runners: dict[Hashable, Runner] = {}
        self._resolved: dict[Hashable, Resolved] = {}
        self._paged = maps_pages(self.device)
        self.new_plans = NewPlans(requested, paged=self._paged)
        self.measures_next = self.closed = False
        self._plans_together = requested.shares_plan  # until the first plan
        self.preparations = 0  # counts; each one overwrites the maps in the arena

    def look(self) -> int:
        """The number of the network's present state; keys of runners hold it.

        A change on which the trace depends gives another number. Schedules for parameters and
        buffers that were replaced or have moved are forgotten. Raises InputError where the
        parameters have moved to another device, UnsupportedOpError where hooks on all modules are
        registered.
        """
        if has_hooks_on_all_modules():
            raise UnsupportedOpError(HOOKS_ON_ALL)
        moved = self.module.have_moved()
        state = self.states.look(moved=moved)
        if moved or state != self.states.current:
            self._take_over(moved)
            self.states.change(state)
        return state

    def _take_over(self, moved: bool) -> None:
        """Use the parameters and buffers that the network has now."""
        if not moved and not self.module.are_replaced():
            return
        self.module.check_device()
        self._suspend()
        self._forget()
        self.module.update()

    def runner(
        self,
        key: Hashable,
        resolved: Callable[[], Resolved],
        updates: UpdatesOf,
        *,
        begins: bool = False,
    ) -> Runner:
        """The runner for `key`, made when first asked for.

        `key` holds the state that `look` saw last. Where a step `begins`, a new plan that is ready
        takes the place of the present one.
        """
        for old in self.states.use(key):
            self._forget_key(old)
        if key not in self.runners:
            self.runners[key] = self._make(key, resolved(), updates)
            self._watch(key)
        elif begins:
            self._replace_plan(key, updates)
        if self.measures_next:
            self.new_plans.measured.watch(key, StepWatch(self.runners[key], None))
            self.measures_next = False
        with self.on_device():
            self._fit(self.runners[key].schedule)
            self.preparations += self.runners[key].refresh()
        return self.runners[key]

    def _fit(self, schedule: Schedule) -> None:
        """Make room for a schedule; where processes share their first plan, in all or in none."""
        fit = partial(self.memory.fit, schedule, self._suspend, self.first_step)
        if self.requested.group is not None and self._plans_together:
            self._plans_together = False
            self.requested.group.unless_one_fails(fit)
        else:
            fit()

    def _forget_key(self, key: Hashable) -> None:
        """Forget the schedule for a key."""
        runner = self.runners.pop(key, None)
        if runner is not None:
            runner.close()
        self.costs.pop(key, None)
        self._resolved.pop(key, None)
        self.new_plans.forget(key)

    def run(self, key: Hashable, phase: int = 0) -> None:
        """Run one phase of the step of the runner for `key`; watch the first steps."""
        runner, costs = self.runners[key], self.costs[key]
        if not self.first_step.ended:
            self.first_step("running", 0.0)
        if self.new_plans.measured.run(key, runner, costs, phase):
            self._ask(key)
        if phase == len(runner.phases) - 1:
            self.follow(key)

    def follow(self, key: Hashable) -> None:
        """Note that a step for `key` was run to its end."""
        self.first_step.end(self.synchronize)
        found = self.runners[key], self.costs[key], self._pinned_budget
        if self.requested.group is None or self.requested.group.size == 1:
            self.new_plans.counts.follow(key, *found)
        self.new_plans.rounding.follow(key)

    def judged(self, key: Hashable, verdict: Verdict, updates: UpdatesOf) -> None:
        """Note the errors of the gradients for `key`. Over the limit, the exact plan is taken."""
        exact = self.new_plans.rounding.note(key, self.runners[key], verdict)
        if exact is not None:
            lead, costs = self._resolved[key].choice.lead, self.costs[key]
            self._replace_runner(key, exact, updates)
            self._watch(key)
            self.new_plans.rounding.ask(key, costs, lead, self._pinned_budget)

    def wait_for_plans(self) -> tuple[Hashable, ...]:
        """Wait until no new plan is being made; returns the keys of the new plans.

        The next step for such a key takes the new plan over.
        """
        self.new_plans.wait()
        present = self.states.keys()
        return tuple(key for key in self.new_plans.pending if key in present)

    def _watch(self, key: Hashable) -> None:
        """Watch the first steps of the runner for `key` if they are predicted and can be timed."""
        runner, costs = self.runners[key], self.costs[key]
        if self.requested.feedback and costs.measured and runner.measures:
            predicted_s = simulate(runner.schedule, costs).step_s
            self.new_plans.measured.watch(key, StepWatch(runner, predicted_s))

    def _ask(self, key: Hashable) -> None:
        """Have the plan for `key` made anew."""
        choice, lossy = self._resolved[key].choice, self.new_plans.rounding.lossy(key)
        self.new_plans.measured.ask(key, choice.policy, choice.lead, self._pinned_budget, lossy)

    @property
    def _pinned_budget(self) -> int:
        """The host budget of new plans: the bytes of the slab as it is.

        To pin more host memory would stop training for seconds.
        """
        given = self.requested.host_budget
        pinned = self.memory.slab.nbytes
        return pinned if given is None else min(given, pinned)

    def _replace_plan(self, key: Hashable, updates: UpdatesOf) -> None:
        """Take over new costs for `key`, if they are there, and a plan that is faster by them."""
        answer = self.new_plans.measured.answer(key)
        if answer is not None:
            self.costs[key] = answer.costs
            permits = self.new_plans.rounding.permits
            if answer.schedule is not None and permits(key, answer.schedule):
                present = self.runners[key].schedule
                self._replace_runner(key, answer.schedule, updates)
                self.new_plans.measured.taken_over(key, present)
        roomy = self.new_plans.counts.answer(key, self.runners[key].schedule)
        if roomy is not None:
            self._replace_runner(key, roomy, updates)
        rounded = self.new_plans.rounding.answer(key, self.runners[key].schedule, self.costs[key])
        if rounded is not None:
            self._replace_runner(key, rounded, updates)
            self._watch(key)

    def _replace_runner(self, key: Hashable, schedule: Schedule, updates: UpdatesOf) -> None:
        self.synchronize()  # the step before may still run
        self.runners[key].close()
        self.runners[key] = self._runner_of(schedule, self._resolved[key], updates)

    def synchronize(self) -> None:
        """Wait for all work on the network's GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def on_device(self) -> AbstractContextManager[object]:
        """A context in which the network's GPU, if it has one, is the present one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _suspend(self) -> None:
        for runner in self.runners.values():
            runner.suspend()

    def drop(self) -> None:
        """Forget all schedules and give back the arena. Steps are planned again when next used."""
        for runner in self.runners.values():
            runner.close()
        self._forget()
        self.memory.arena.close()

    def _forget(self) -> None:
        self.runners.clear()
        self.module.forget_copies()
        self.new_plans.drop_all()

    def close(self) -> None:
        """Give back arena and graphs, and slab and file where they are the core's own."""
        self.drop()
        self.closed = True
        with self.on_device():
            self.memory.close()

    def resolve(self, network: Network, settings: Settings) -> Resolved:
        """The graph of a step, and how to plan and run it, as requested or as tuned.

        Chunk sizes of `settings` are kept where the user gave them.
        """
        tuned = find_tuned(self.hardware, network, settings.dtype)
        if tuned is not None and not self.requested.sized:
            settings = with_chunks(settings, tuned.chunks)
        found = self.computed.nbytes(network, settings.mode, self.module.tensors)
        reserve = settings.reserve + network.changes.nbytes
        settings = replace(settings, reserve=reserve, computed_nbytes=found)
        choice = choose(tuned, self.requested.budget, self.requested.choice)
        graph = expand(network, settings)
        return Resolved(graph, choice, (tuned and tuned.configurations) or RULES)

    @property
    def hardware(self) -> str:
        """The machine by whose costs steps are planned."""
        if self.requested.costs is not None:
            return self.requested.costs.hardware
        cuda = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if cuda else DEFAULT_HARDWARE

    def _make(self, key: Hashable, resolved: Resolved, updates: UpdatesOf) -> Runner:
        self.first_step("tracing", 1.0)
        self._resolved[key] = resolved
        find, group = partial(self._step_costs.find, resolved), self.requested.group
        together = group if self._plans_together else None
        self.costs[key], budget = find() if together is None else together.unless_one_fails(find)
        plan = partial(self._plan, key, resolved, budget)
        if together is not None:
            graph = resolved.graph
            self.costs[key], schedule = plan_together(together, self.costs[key], graph, plan)
        else:
            schedule = plan(self.costs[key])
        return self._runner_of(schedule, resolved, updates)

    def _plan(
        self, key: Hashable, resolved: Resolved, budget: int | None, costs: Costs
    ) -> Schedule:
        requested = self.requested
        limits = budget, requested.host_budget, requested.tiers
        problem = Problem(resolved.graph, costs, *limits, paged=self._paged)
        choice, progress = resolved.choice, self.first_step
        exact = problem.schedule(choice.policy, lead=choice.lead, progress=progress)
        return self.new_plans.rounding.schedule(key, problem, exact, choice.lead, progress)

    def _runner_of(self, schedule: Schedule, resolved: Resolved, updates: UpdatesOf) -> Runner:
        network = resolved.graph.network
        params = {
            n: self.module.copies.get(n, param.detach()) for n, param in self.module.params.items()
        }
        held = self.module.held_copies(network.changes)
        params |= {**self._constants, **held, **self.computed.of(network)}
        tracked = {name: (buffer,) for name, buffer in self.module.buffers.items()}
        return Runner(
            schedule,
            Tensors(params | self.module.buffers, {**updates(network), **tracked}, self.control),
            kernels=self.kernels,
            arena=self.memory.arena,
            slab=self.memory.slab,
            file=self.memory.file,
            peer=self.memory.peer,
            order_seed=self.requested.order_seed,
            delay_seed=self.requested.delay_seed,
            clock=self.requested.clock,
            copies=resolved.choice.copies,
            configurations=resolved.configurations,
            progress=self.first_step,
        )
