"""Trainer: forward, loss, backward and update planned as one step, run inside a device budget."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import EngineError, InputError
from ..graph import Graph, Network
from ..ops.expand import Mode
from ..ops.loss import TARGET, label_ranges
from ..optim import SGD
from ..planner.ir.costs import Costs
from ..planner.ir.plan import Plan
from ..planner.ir.schedule import Schedule
from ..planner.ir.settings import DEFAULT_POLICY
from ..planner.ir.timeline import Timeline
from ..planner.policies import policy_named
from ..planner.timing.calibrate import Calibration, compare
from ..planner.timing.simulate import simulate
from ..runtime.host_slab import Slab
from ..runtime.kernel_set import kernel_set
from ..runtime.runner import Runner
from ..runtime.staging import BUFFERS, Staging
from ..trace.guards.inputs import check_inputs
from ..trace.trace import trace
from ..units import format_bytes, parse_bytes, parse_limit
from .build import (
    ChunkSize,
    Progress,
    check_master_weights,
    check_trainable,
    give_lazy_parameters,
    resolve_dtype,
    training_settings,
)
from .core import Chosen, Core, Options, PlanRequest, Updates, asked_for, write_control
from .gradients import check_saving
from .label_faults import Faults, loss_of
from .losses import GivenLosses, LossLike, losses_of, target_nbytes, target_shape
from .module_state import Copies, copied, restore_where, restored_after_failure
from .optimizers import Planned, Spec, Updated, control_of, count_step, plan_optimizer, updated_by

RECENT_STEPS: Final = 4096  # more than a GPU's queue holds while the host goes on
Key: TypeAlias = tuple[tuple[int, ...], Mode, int]  # of a batch, its mode, the network's state


class Trainer:
    """Trains `net` by planned steps on batches like `example_inputs`: [N, C, H, W] or [N, F].

    - `loss`: "cross_entropy", "bce_with_logits" or "mse", or torch.nn's CrossEntropyLoss (of rows
      or pixels), BCEWithLogitsLoss or MSELoss with its settings. A network of several outputs takes
      a list, a loss for each. A step refuses a loss module that has changed since.
    - `loss_weights`: the factors with which the losses of several outputs are added.
    - `optimizer`: `tvdnn.optim.SGD` (the default) or `tvdnn.optim.AdamW`. Learning rates are
      changed on `trainer.optimizer`, which torch's schedulers take.
    - `policy`: "keep", "vdnn-all", "vdnn-conv", "vdnn-dyn", "tvdnn-ilp", "tvdnn-heuristic", "auto".
    - `budget`: the most device bytes of parameters, optimizer state, workspaces and maps, as a
      number or as text ("4GiB"). "min" is the floor: the least budget with a schedule.
    - `host_budget`: the most pinned host bytes, as a number or as text.
    - `chunk_size`: the bytes of a section, the unit of copies, as a number or as text.
    - `lead`: the most slots of the plan by which a prefetch comes ahead of its use. A plan with
      this lead must fit the budgets.
    - `copies`: "engine" for the copy engines, "kernel" for a kernel.
    - `dtype`: "fp32", "tf32" or "bf16". Master weights stay float32.
    - `kernels`: "triton", or "torch" for references. On a GPU references lie outside the memory
      guarantee.
    - `feedback`: whether the plan follows the first steps on a GPU. Steps that miss their
      prediction by more than 5% are measured, the costs are corrected, and the plan is made again
      in another process. A later step takes it over if it is predicted to be faster. What is
      computed stays the same, bit for bit.

    Where `policy`, `chunk_size`, `lead` and `copies` are not given, they are what `tvdnn tune`
    found for the network, or else "auto", 16 MiB, as many slots as there is room for, and "engine".
    Other batch sizes are planned when they first appear, and share the memory.

    Raises BudgetError with the floor for a budget below it, UnsupportedOpError for an op that tvdnn
    does not know, and InputError for an argument that does not fit.
    """

    def __init__(
        self,
        net: nn.Module,
        example_inputs: torch.Tensor,
        *,
        loss: LossLike | Sequence[LossLike] = "cross_entropy",
        loss_weights: Sequence[float] | None = None,
        optimizer: Spec | None = None,
        policy: str | None = None,
        budget: int | str | None = None,
        host_budget: int | str | None = None,
        chunk_size: ChunkSize = None,
        sections: int | None = None,
        lead: int | None = None,
        copies: str | None = None,
        dtype: str | None = None,
        kernels: str | None = None,
        seed: int = 0,
        costs: Costs | None = None,
        slab: Slab | None = None,
        order_seed: int | None = None,
        delay_seed: int | None = None,
        feedback: bool = True,
        clock: Costs | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.net = net
        check_master_weights(net)
        give_lazy_parameters(net, example_inputs)
        self._foreign_nbytes = _measure_foreign(net)
        self._spec: Spec = optimizer or SGD()
        sized = chunk_size is not None or sections is not None
        options = Options(
            kernels, order_seed, delay_seed, costs, slab, progress, feedback, clock, sized
        )
        asked = asked_for(policy, lead, copies)
        limits = PlanRequest(parse_limit(budget), parse_bytes(host_budget), asked)
        losses = losses_of(loss, loss_weights, next(net.parameters(), torch.empty(0)).device)
        self._given_losses = GivenLosses(loss)
        self._core = Core(net, limits, options, losses.tensors)
        dtype = resolve_dtype(dtype, self.device)
        self._staging = Staging(self.device)
        self._settings = replace(
            training_settings(losses.each, self._spec, dtype, chunk_size, sections),
            reserve=self._staging.nbytes_for(example_inputs),
            fuse=policy_named(policy or DEFAULT_POLICY).fused,
        )
        self._seed, self._steps = seed, 0
        self._grads: dict[str, torch.Tensor] = {}
        self._sums: dict[tuple[str, torch.Size, tuple[int, ...]], torch.Tensor] = {}
        self._updated: dict[Key, Updated] = {}
        self._recent: deque[tuple[int, Updated]] = deque(maxlen=RECENT_STEPS)
        self._faults = Faults(self._core.control)
        self._state = self._core.look()
        self.optimizer = self._make_optimizer()
        self._first = tuple(example_inputs.shape)
        self._made_for: Any = WeakIdKeyDictionary(dict.fromkeys(net.parameters()))
        self._target_shape = target_shape(self.graph.network)
        self._label_ranges = label_ranges(self.graph.network)
        self.construction_peak_nbytes = self.peak_nbytes()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    @property
    def device(self) -> torch.device:
        """The device of the parameters, where steps run."""
        return self._core.device

    @property
    def schedule(self) -> Schedule:
        """The schedule for batches like the example."""
        return self._runner(self._first).schedule

    @property
    def graph(self) -> Graph:
        """The ops, buffers and passes of a step on a batch like the example."""
        return self.schedule.graph

    @property
    def plan(self) -> Plan:
        """What happens to every feature map, and why."""
        return self.schedule.plan

    @property
    def costs(self) -> Costs:
        return self._core.costs[self._key(self._first)]

    @property
    def predicted(self) -> Timeline:
        """The simulated timeline of a step on a batch like the example."""
        return simulate(self.schedule, self.costs)

    @property
    def feedback(self) -> Calibration | None:
        """The step on a batch like the example that was measured first, beside its prediction.

        None where the first steps took what was predicted, or were not watched.
        """
        return self._core.feedback(self._key(self._first))

    @property
    def replanning(self) -> bool:
        """Whether a plan is being made anew in another process, or waits for the next step."""
        return self._core.replanning

    def drift(self, x: torch.Tensor, y: torch.Tensor) -> Calibration:
        """One training step, measured on a GPU, and the ops that miss their prediction most."""
        timeline = self.timeline(x, y)
        key = self._key(tuple(x.shape))
        return compare(self._core.runners[key].schedule, self._core.costs[key], timeline)

    def step(self, x: torch.Tensor, y: torch.Tensor, *, accumulate: int = 1) -> torch.Tensor:
        """One training step; returns the loss, a 0-d float32 tensor on the device.

        `x` [N, ...] and `y`, classes int64 [N] or [N, H, W] or else floats in the output's shape,
        may lie on the device, or in pinned or pageable host memory. Where a label is neither a
        class nor ignored, the step and those after it change nothing, and the loss is NaN; reading
        the loss or a later call raises InputError with the sample and its label, and steps from
        there on train again.
        With `accumulate` = k the batch runs as k parts of N / k samples whose gradients are summed
        before one update.
        """
        self._check(x, y, accumulate)
        if accumulate > 1:
            self._make_grads()
        mode = Mode.ACCUMULATE if accumulate > 1 else Mode.TRAIN
        shape = (x.shape[0] // accumulate, *x.shape[1:])
        runner = self._runner(shape, mode, begins=True)
        check_inputs(runner.schedule.graph.network, (x,))
        updated = self._write_control(runner, shape, mode, 1.0 / accumulate)
        changed = self._core.state_before(runner)
        with restored_after_failure([*self._snapshot(), *changed]), self._core.on_device():
            with self._summing(runner, mode, updated):
                loss = (
                    self._parts(runner, x, y) if accumulate > 1 else self._part(runner, x, y, mode)
                )
            self._faults.follow()
            restore_where(self._core.control.flag[0], changed)
        self._count(updated)
        return loss_of(loss, self._raise_faults)

    def measure(self, x: torch.Tensor, y: torch.Tensor, steps: int = 20) -> float:
        """Median seconds of a step, of `steps` after one to warm up: training steps like any.

        A plan that is being made anew is taken over between two steps, outside their times.
        """
        self.step(x, y)
        seconds = []
        for _ in range(steps):
            self.settle()
            self._synchronize()
            begin = time.perf_counter()
            self.step(x, y)
            self._synchronize()
            seconds.append(time.perf_counter() - begin)
        return median(seconds)

    def settle(self) -> None:
        """Wait for plans that are being made anew by what the first steps took, and take them over.

        Without it training goes on meanwhile, and a later step takes such a plan over.
        """
        keys: Iterable[Any] = self._core.wait_for_plans()
        for shape, mode, state in keys:
            if state == self._state:
                self._runner(shape, mode, begins=True)

    def timeline(self, x: torch.Tensor, y: torch.Tensor) -> Timeline:
        """The measured timeline of one training step on a GPU."""
        self._check(x, y, 1)
        runner = self._runner(tuple(x.shape), begins=True)
        check_inputs(runner.schedule.graph.network, (x,))
        updated = self._write_control(runner, tuple(x.shape), Mode.TRAIN, 1.0)
        changed = self._core.state_before(runner)
        with restored_after_failure(changed), self._core.on_device():
            self._core.change_state(runner)
            with self._summing(runner, Mode.TRAIN, updated):
                self._fill(runner, x, y)
                timeline = runner.timeline()
            self._faults.follow()
            restore_where(self._core.control.flag[0], changed)
        self._count(updated)
        return timeline

    def peak_nbytes(self) -> int:
        """Most device bytes of the steps so far, without what others held before; planned on a CPU.

        `construction_peak_nbytes` is the same for planning, profiling and capture.
        """
        if self.device.type != "cuda":
            return self.schedule.peak_nbytes
        return torch.cuda.max_memory_allocated(self.device) - self._foreign_nbytes

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimizer state, step count and seed, in torch's own forms."""
        self._raise_faults(wait=True)
        return {
            "model": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self._steps,
            "seed": self._seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` saved, in place."""
        self._faults.clear()
        self._recent.clear()
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._steps, self._seed = state["steps"], state["seed"]

    def close(self) -> None:
        """Give back arena, graphs and, where the trainer made it, the slab."""
        self._core.close()

    def _make_optimizer(self) -> Planned:
        trained = list(self._trained_params().values())
        if not trained:
            raise InputError(
                "the network has no parameter with requires_grad; there is nothing to train"
            )
        return plan_optimizer(self._spec, trained)

    def _check(self, x: torch.Tensor, y: torch.Tensor, accumulate: int) -> None:
        if self._core.closed:
            raise EngineError("this trainer is closed; make a new one")
        self._raise_faults()
        self._given_losses.check()
        self._follow_network()
        self._check_hooks()
        if accumulate < 1 or x.shape[0] % accumulate:
            raise InputError(
                f"accumulate={accumulate} does not divide the batch of {x.shape[0]}; "
                "choose a divisor"
            )
        if tuple(x.shape[1:]) != self._first[1:]:
            raise InputError(
                f"x has samples of shape {list(x.shape[1:])}, the example "
                f"{list(self._first[1:])}; only the batch may vary"
            )
        dtype = self._settings.losses[0].target_dtype
        wanted = [x.shape[0], *self._target_shape[1:]]
        if y.is_floating_point() != (dtype != "int64") or list(y.shape) != wanted:
            raise InputError(
                f"y is {y.dtype} {list(y.shape)}; it must be {dtype} of shape {wanted}"
            )

    def _follow_network(self) -> None:
        """Plan for the network as it is now, if it has changed since the last step.

        Raises InputError for parameters that the optimizer has not.
        """
        state = self._core.look()
        if state == self._state:
            return
        check_master_weights(self.net)
        self._follow_parameters()
        self._grads, self._updated, self._state = {}, {}, state

    def _check_hooks(self) -> None:
        check_saving()
        for name, param in self._core.params.items():
            if param._backward_hooks or param._post_accumulate_grad_hooks:
                raise InputError(
                    f"parameter {name} has hooks on its gradient, which a planned step would not"
                    " call; remove them, or train in a loop of your own (virtualize)"
                )

    def _follow_parameters(self) -> None:
        """Let the optimizer have parameters that were frozen when the trainer was made."""
        known, trained = self.optimizer.record.numbers, self._trained_params()
        missing = {name: param for name, param in trained.items() if param not in known}
        for name, param in missing.items():
            if param not in self._made_for:
                raise InputError(
                    f"parameter {name} was added or replaced after this trainer was made, and its"
                    " optimizer holds the old ones; make a new trainer"
                )
        if missing:
            self.optimizer.record.adopt(self.optimizer, tuple(missing.values()))

    def _part(
        self, runner: Runner, x: torch.Tensor, y: torch.Tensor, mode: Mode, first: int = 0
    ) -> torch.Tensor:
        """Run a batch, or the part of one from sample `first` on, and give its loss."""
        self._core.change_state(runner)
        self._fill(runner, x, y, first)
        self._core.run(self._key(tuple(x.shape), mode))
        return _loss(runner)

    @contextmanager
    def _summing(self, runner: Runner, mode: Mode, updated: Updated) -> Iterator[None]:
        """Around what sums gradients: computed parameters are made before it, updates behind it."""
        network = runner.schedule.graph.network
        sums = self._sums_of(network, mode)
        tensors = self._core.tensors if network.formulas else {}
        self._core.computed.fill(network, tensors)
        for each in sums.values():
            each.zero_()
        yield
        self._core.computed.hand_on(network, tensors, sums, updated.computed)
        self._update([name for name in updated.names if name in sums], sums)

    def _sums_of(self, network: Network, mode: Mode) -> dict[str, torch.Tensor]:
        """The kept sums of gradients of a step, by parameter: of all, or those completed last."""
        found = {**self._core.params, **self._core.computed.of(network)}
        sums = {
            name: self._sum_like(name, found[name])
            for name in (network.completed_last if network.formulas else ())
            if network.params[name].requires_grad
        }
        return self._grads | sums if mode is Mode.ACCUMULATE else sums

    def _sum_like(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        key = name, tensor.shape, tensor.stride()
        if key not in self._sums:
            self._sums[key] = torch.zeros_like(tensor, requires_grad=False)
        return self._sums[key]

    def _parts(self, runner: Runner, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Sum the gradients of the parts of a batch."""
        rows = runner.schedule.graph.network.batch
        starts = range(0, len(x), rows)
        self._check_labels(runner, y, starts)
        parts = zip(x.split(rows), y.split(rows), starts, strict=True)
        losses = [self._part(runner, a, b, Mode.ACCUMULATE, start) for a, b, start in parts]
        return torch.stack(losses).mean()

    def _check_labels(self, runner: Runner, y: torch.Tensor, starts: range) -> None:
        """Check the labels of all parts before the first, whose statistics are tracked."""
        if y.is_floating_point() or len(starts) == 1:
            return
        if y.device == self.device:
            runner.check_labels(y)
            return
        for start in starts:
            part = y[start : start + starts.step]
            runner.check_labels(self._staging.put(part, TARGET), first=start)
            self._staging.release()

    def _update(self, names: Sequence[str], sums: Mapping[str, torch.Tensor]) -> None:
        """Update parameters by the kept sums; small ones share launches."""
        if not names:
            return
        update = getattr(kernel_set(self._core.kernels), f"{self._spec.kind}_many")
        params, *states = zip(*map(self._tensors_of, names), strict=True)
        grads, control = [sums[name] for name in names], self._core.control.optimizer
        update(params, grads, *states, control, **self._spec.switches)

    def _tensors_of(self, name: str) -> tuple[torch.Tensor | None, ...]:
        """What an update of the parameter `name` changes: itself, and its optimizer state."""
        param = self._core.params[name]
        return param.detach(), *self.optimizer.record.tensors_of(param)

    def _fill(self, runner: Runner, x: torch.Tensor, y: torch.Tensor, first: int = 0) -> None:
        self._check_staging(x, runner.schedule)
        name = runner.schedule.graph.network.inputs[0]
        runner.fill(name, self._staging.put(x, name))
        runner.fill(TARGET, self._staging.put(y, TARGET), first=first)
        self._staging.release()

    def _check_staging(self, x: torch.Tensor, schedule: Schedule) -> None:
        """Host inputs need device bytes: planned for, or else there must be room in the budget."""
        nbytes = self._staging.nbytes_for(x)
        if nbytes <= self._settings.reserve or schedule.budget_nbytes is None:
            return
        if schedule.peak_nbytes + nbytes > schedule.budget_nbytes:
            budget = schedule.budget_nbytes
            raise InputError(
                f"x lies on the host and takes {format_bytes(nbytes)} of staging, which the budget "
                f"{format_bytes(budget)} has no room for; pass example_inputs on the host, so that "
                "it is planned, or x on the device"
            )

    def _key(self, shape: tuple[int, ...], mode: Mode = Mode.TRAIN) -> Key:
        return shape, mode, self._state

    def _runner(
        self, shape: tuple[int, ...], mode: Mode = Mode.TRAIN, *, begins: bool = False
    ) -> Runner:
        """The runner for batches of `shape`, planned and captured when first asked for."""
        chosen, updates = partial(self._chosen, shape, mode), partial(self._updates, mode)
        return self._core.runner(self._key(shape, mode), chosen, updates, begins=begins)

    def _chosen(self, shape: tuple[int, ...], mode: Mode) -> Chosen:
        self._core.report("tracing", 0.0)
        network = self._trace(shape)
        self._core.report("tracing", 1.0)
        others = self._grads.keys() - network.completed_last
        kept = sum(self._grads[name].nbytes for name in others)
        reserve = self._settings.reserve + (kept if mode is Mode.TRAIN else 0)
        reserve += self.optimizer.record.idle_nbytes(self._trained_by(network))
        if self._settings.reserve:  # where inputs are staged, so are targets
            reserve += BUFFERS * target_nbytes(network, self._settings.losses)
        return self._core.chosen(network, replace(self._settings, mode=mode, reserve=reserve))

    def _trace(self, shape: tuple[int, ...]) -> Network:
        network = trace(self.net, (torch.empty(shape, device="meta"),), ordered=True)
        return check_trainable(network, self._settings.losses)

    def _updates(self, mode: Mode, network: Network) -> Updates:
        """What passes that consume gradients change: parameters and state, or kept sums."""
        sums = {name: (each,) for name, each in self._sums_of(network, mode).items()}
        if mode is Mode.ACCUMULATE:
            return sums
        return {**{name: self._tensors_of(name) for name in self._trained()}, **sums}

    def _trained_params(self) -> dict[str, torch.Tensor]:
        return {name: param for name, param in self._core.params.items() if param.requires_grad}

    def _trained_by(self, network: Network) -> list[torch.Tensor]:
        """The parameters that steps of a network update."""
        params = self._trained_params()
        return [params[name] for name in network.params if name in params]

    def _trained(self) -> dict[str, torch.Tensor]:
        return {name: param.detach() for name, param in self._trained_params().items()}

    def _make_grads(self) -> None:
        """Make tensors to sum gradients in; what was planned without them is planned again."""
        if self._grads:
            return
        self._core.drop()
        trained = self._trained().items()
        self._grads = {name: self._sum_like(name, param) for name, param in trained}

    def _write_control(
        self, runner: Runner, shape: tuple[int, ...], mode: Mode, scale: float
    ) -> Updated:
        """Write the settings of the runner's next step; tell what the step updates."""
        key = self._key(shape, mode)
        if key not in self._updated:
            graph, params = runner.schedule.graph, self._core.params
            self._updated[key] = updated_by(graph, self.optimizer, params)
        settings = control_of(self.optimizer, self._updated[key])
        seed, step = self._seed + self._steps, self._steps + 1
        write_control(self._core.control_bytes, settings, scale, seed, step)
        return self._updated[key]

    def _count(self, updated: Updated) -> None:
        self._steps += 1
        self._recent.append((self._steps, updated))
        count_step(self.optimizer, updated)

    def _raise_faults(self, *, wait: bool = False) -> None:
        """Raise InputError for a label that is no class, if one is known, and count back.

        With `wait` the steps on their way are waited for.
        """
        fault = self._faults.found(wait=wait)
        if fault is None:
            return
        step, sample, label = fault
        for number, updated in self._recent:
            if number >= step:
                count_step(self.optimizer, updated, by=-1)
        self._recent.clear()
        self._steps = step - 1
        self._faults.clear()
        known = " and ".join(
            f"a class from 0 to {classes - 1} or ignore_index {ignored}"
            for classes, ignored in self._label_ranges
        )
        raise InputError(
            f"step {step}: sample {sample} has label {label}; labels are {known}. Neither that step"
            " nor those after it have changed anything: correct the labels and go on"
        )

    def _snapshot(self) -> Copies:
        """Copies of what a failed step must leave alone; on a GPU a step cannot stop half-way."""
        if self.device.type == "cuda":
            return []
        frozen = [param for param in self._core.params.values() if not param.requires_grad]
        trained = [tensor for name in self._trained() for tensor in self._tensors_of(name)]
        given = (*frozen, *trained, *self._core.buffers.values())
        return copied(tensor.detach() for tensor in given if tensor is not None)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _measure_foreign(net: nn.Module) -> int:
    """Device bytes that others hold: all but the network's parameters and buffers."""
    own = [each for each in (*net.parameters(), *net.buffers()) if each.device.type == "cuda"]
    if not own:
        return 0
    torch.cuda.reset_peak_memory_stats(own[0].device)
    own_nbytes = sum(each.numel() * each.element_size() for each in own)
    return torch.cuda.memory_allocated(own[0].device) - own_nbytes


def _loss(runner: Runner) -> torch.Tensor:
    (_, total) = runner.outputs("loss")[0]
    return total[0].clone()
