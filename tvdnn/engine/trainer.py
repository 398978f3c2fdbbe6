"""Trainer: forward, loss, backward and update as one planned step inside a device budget."""

import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import EngineError, InputError
from ..graph import Graph
from ..optim import SGD
from ..planner.ir.costs import Costs
from ..planner.ir.plan import Plan
from ..planner.ir.schedule import Schedule
from ..planner.ir.timeline import Timeline
from ..planner.timing.calibrate import Calibration, compare
from ..planner.timing.simulate import simulate
from ..runtime.compile_process import compiling_soon
from ..runtime.host_slab import Slab
from ..runtime.section_file import SectionFile
from .build import (
    ChunkSize,
    Progress,
    prepared,
    resolve_dtype,
    training_settings,
    with_rewrites_for,
)
from .code_counts import CodeCount
from .core import Core
from .engine_request import (
    CHECK_EVERY,
    EngineRequest,
    is_sized,
    requested_choice,
    requested_memory,
    requested_rounding,
)
from .first_step import FirstStep
from .gradient_checks import check_no_hooks, check_saving
from .label_faults import loss_of
from .losses import GivenLosses, LossLike, losses_of
from .optimizer_state import Spec
from .peak_memory import PeakMemory
from .process_group import ALONE, begin_together, grouped, training_group
from .rounding_plans import RoundingReport
from .rounding_search import Verdict
from .training_batches import TrainingBatches
from .training_steps import TrainingSteps

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Trainer:
    """Trains `net` by planned steps on batches like `example_inputs`: [N, C, H, W] or [N, F].

    - `loss`: "cross_entropy", "bce_with_logits" or "mse", or torch.nn's CrossEntropyLoss (of rows
      or pixels), BCEWithLogitsLoss or MSELoss with its settings. A network of several outputs takes
      a list, a loss for each. A step refuses a loss module that has changed since.
    - `loss_weights`: the factors with which the losses of several outputs are added.
    - `optimizer`: `tvdnn.optim.SGD` (the default) or `tvdnn.optim.AdamW`. Learning rates are
      changed on `trainer.optimizer`, which torch's schedulers take.
    - `policy`: "keep", "vdnn-all", "vdnn-conv", "vdnn-dyn", "superneurons", "gist-lossless",
      "tvdnn-ilp", "tvdnn-heuristic", "auto"; or "gist-lossy:fp16", ":fp10" or ":fp8", which round
      the maps that backward reads. No other policy does, but auto where `allow` says so.
    - `budget`: the most device bytes of parameters, optimizer state, workspaces and maps, as a
      number or as text ("4GiB"). "min" is the floor: the least budget with a schedule.
    - `host_budget`: the most pinned host bytes, as a number or as text. Processes that train
      together share those of a machine evenly.
    - `file`: a folder on a local disk, in which an unnamed file takes what the host budget cannot
      hold, up to `file_budget` bytes. Parameters are updated behind all copies of the file. Where
      one fails the step raises FileError, and has changed no parameter. On a GPU `step` returns
      once these copies have ended.
    - `peer_budget`: the most bytes of a second arena, which takes sections before the host does. It
      lies on the same device, beside the budget, and stands in for the memory of another GPU.
    - `chunk_size`: the bytes of a section, the unit of copies, as a number or as text.
    - `lead`: the most slots of the plan by which a prefetch comes ahead of its use. A plan with
      this lead must fit the budgets.
    - `copies`: "engine" for the copy engines, "kernel" for a kernel.
    - `dtype`: "fp32", "tf32" or "bf16". Master weights stay float32.
    - `seed`: of dropout's masks and other random numbers, others at each step.
    - `kernels`: "triton", or "torch" for references, whose memory on a GPU no budget holds.
    - `allow`: "lossy:0.03" lets auto store maps rounded, as long as no parameter's gradient has a
      relative RMS error of more than 3%. Gradients are measured on the first batch and every
      `lossy_check_every` steps, in steps without update. A codec over the limit is dropped for the
      maps that cause it, with a warning. Without it all gradients are exact.
    - `feedback`: whether the plan follows the first steps on a GPU. Steps that miss their
      prediction by more than 5% are measured, the costs are corrected, and the plan is made again
      in another process. A later step takes it over if it is predicted to be faster. What is
      computed stays the same, bit for bit. Several processes that train together keep their plan.

    - `process_group`: the processes of torch.distributed that train together, each on its samples:
      losses and gradients are the means of all. Gradients are summed beside backward, in buckets
      of `bucket_size` bytes (25 MiB), as `sum_dtype`, "fp32" or "bf16". Parameters are updated once
      all sums have arrived; with `early_updates` those of a bucket behind its own. On a GPU a sum
      that fails then leaves some parameters updated: they are lost, and the error says so. With
      `shard="optimizer"` each process has a shard of the optimizer's state (ZeRO stage 1), and all
      of them call `state_dict` together.

    Where `policy`, `chunk_size`, `lead` and `copies` are not given, they are what `tvdnn tune`
    found for the network, or else "auto", 16 MiB (more for large networks), as many slots as there
    is room for, and "engine". Other batch sizes are planned when they first appear, and share the
    memory.

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
        allow: str | None = None,
        lossy_check_every: int = CHECK_EVERY,
        budget: int | str | None = None,
        host_budget: int | str | None = None,
        file: str | Path | SectionFile | None = None,
        file_budget: int | str | None = None,
        peer_budget: int | str | None = None,
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
        process_group: "ProcessGroup | str | None" = ALONE,
        bucket_size: int | str | None = None,
        sum_dtype: str = "fp32",
        early_updates: bool = False,
        shard: str | None = None,
    ) -> None:
        self.net, first_step = net, FirstStep(progress)
        device = prepared(net, example_inputs)
        self._peak, spec = PeakMemory(net), optimizer or SGD()
        policy, fields = requested_rounding(policy, allow, lossy_check_every)
        fields |= requested_memory(budget, host_budget, file, file_budget, peer_budget)
        fields |= {"choice": requested_choice(policy, lead, copies), "costs": costs, "slab": slab}
        fields |= {"sized": is_sized(chunk_size, sections), "clock": clock, "kernels": kernels}
        group = training_group(process_group, net, device, file=file, allow=allow)
        fields |= {"feedback": feedback, "first_step": first_step, **grouped(group, host_budget)}
        fields |= {"order_seed": order_seed, "delay_seed": delay_seed, "shares_plan": True}
        losses = losses_of(loss, loss_weights, device)
        self._core = Core(net, EngineRequest(**fields), losses.tensors)
        self._given_losses, self._core.memory.peak = GivenLosses(loss), self._peak
        self._batches = TrainingBatches(example_inputs, self.device)
        how = losses.each, spec, resolve_dtype(dtype, self.device), chunk_size, sections
        settings = training_settings(*how, updates_last=bool(file), reserve=self._batches.reserve)
        settings = with_rewrites_for(settings, policy, may_round=allow is not None)
        sums = bucket_size, sum_dtype, early_updates, shard
        settings = begin_together(group, net, example_inputs, settings, *sums)
        with compiling_soon(self.device, kernels):
            self._steps = TrainingSteps(net, self._core, self._batches, settings, spec, seed)
        self.optimizer, self.construction_peak_nbytes = self._steps.optimizer, self.peak_nbytes()
        self._peak.forget()

    @property
    def device(self) -> torch.device:
        """The device of the parameters, where steps run."""
        return self._core.device

    @property
    def schedule(self) -> Schedule:
        """The schedule for batches like the example."""
        return self._steps.runner(self._batches.first).schedule

    @property
    def graph(self) -> Graph:
        """The ops, buffers and passes of a step on a batch like the example."""
        return self.schedule.graph

    @property
    def plan(self) -> Plan:
        """The plan: where each feature map is kept, and why."""
        return self.schedule.plan

    @property
    def costs(self) -> Costs:
        return self._core.costs[self._steps.key(self._batches.first)]

    @property
    def predicted(self) -> Timeline:
        """The simulated timeline of a step on a batch like the example."""
        return simulate(self.schedule, self.costs)

    @property
    def first_step(self) -> Mapping[str, float]:
        """Seconds from the making of the trainer to the end of its first step, by part."""
        return self._core.first_step.seconds

    @property
    def feedback(self) -> Calibration | None:
        """The step on a batch like the example that was measured first, beside its prediction.

        None where the first steps took what was predicted, or were not watched.
        """
        return self._core.new_plans.feedback(self._steps.key(self._batches.first))

    @property
    def replanning(self) -> bool:
        """Whether a new plan is being made in another process, or waits for the next step."""
        return bool(self._core.new_plans.pending)

    @property
    def code_counts(self) -> tuple[CodeCount, ...]:
        """The most values of each packed code in steps on a batch like the example.

        They are those of the present plan, and wait for all steps.
        """
        return self._core.new_plans.code_counts(self._steps.key(self._batches.first))

    @property
    def rounding(self) -> RoundingReport | None:
        """What was measured last of gradients by rounded maps, on a batch like the example.

        None where no map is rounded, or was so far.
        """
        return self._core.new_plans.rounding_report(self._steps.key(self._batches.first))

    def drift(self, x: torch.Tensor, y: torch.Tensor) -> Calibration:
        """One training step, measured on a GPU, and the ops that miss their prediction most."""
        timeline = self.timeline(x, y)
        key = self._steps.key(tuple(x.shape))
        return compare(self._core.runners[key].schedule, self._core.costs[key], timeline)

    def step(self, x: torch.Tensor, y: torch.Tensor, *, accumulate: int = 1) -> torch.Tensor:
        """One training step; returns the loss, a 0-d float32 tensor on the device.

        `x` [N, ...] and `y`, classes int64 [N] or [N, H, W] or else floats in the output's shape,
        may lie on the device, or in pinned or pageable host memory. Where a label is neither a
        class nor ignored, this step and later ones change nothing, and the loss is NaN. Reading the
        loss, or a later call, raises InputError with the sample and its label. Then steps train
        again.
        With `accumulate` = k the batch runs as k parts of N / k samples, whose gradients are summed
        before one update. Raises InputError for a batch that does not fit.
        """
        self._check(x, y, accumulate)
        loss = self._steps.run(x, y, accumulate)
        return loss_of(loss, self._steps.count.raise_faults)

    def rounding_errors(self, x: torch.Tensor, y: torch.Tensor, limit: float = inf) -> Verdict:
        """The errors of a batch's gradients that follow from rounded maps of the present plan.

        They are measured in steps without update, which change nothing. Where one is over the
        limit, further steps find the maps that cause it. Raises InputError for labels that are no
        classes.
        """
        self._check(x, y, 1)
        return self._steps.rounding_errors(x, y, limit)

    def measure(self, x: torch.Tensor, y: torch.Tensor, steps: int = 20) -> float:
        """The median seconds of `steps` training steps, after one step to warm up.

        A new plan is taken over between two steps, outside their times.
        """
        self.step(x, y)
        seconds = []
        for _ in range(steps):
            self.settle()
            self._core.synchronize()
            begin = time.perf_counter()
            self.step(x, y)
            self._core.synchronize()
            seconds.append(time.perf_counter() - begin)
        return median(seconds)

    def settle(self) -> None:
        """Wait for new plans that follow from measured steps, and take them over.

        Without it training goes on, and a later step takes such a plan over.
        """
        keys: Iterable[Any] = self._core.wait_for_plans()
        for shape, mode, state in keys:
            if state == self._steps.state:
                self._steps.runner(shape, mode, begins=True)

    def timeline(self, x: torch.Tensor, y: torch.Tensor) -> Timeline:
        """The measured timeline of one training step on a GPU."""
        self._check(x, y, 1)
        return self._steps.timeline(x, y)

    def peak_nbytes(self) -> int:
        """Most device bytes of the steps so far, without what others held before; planned on a CPU.

        `construction_peak_nbytes` is the same for planning, profiling and capture.
        """
        if self.device.type != "cuda":
            return self.schedule.peak_nbytes
        return self._peak.nbytes(self._core.memory.arena)

    @property
    def nbytes_outside_torch(self) -> int:
        """Device bytes of the pages of the arena, which torch's own counters do not know."""
        return self._core.memory.arena.nbytes_outside_torch

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimizer state, step count and seed, in torch's own forms.

        Processes that have shards of the optimizer's state call it together. Each gets all of it.
        """
        self._steps.count.raise_faults(wait=True)
        return {
            "model": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self._steps.count.steps,
            "seed": self._steps.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` saved, in place."""
        self._steps.count.forget()
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._steps.count.steps, self._steps.seed = state["steps"], state["seed"]

    def close(self) -> None:
        """Give back arena, graphs and, where the trainer made it, the slab."""
        self._core.close()

    def _check(self, x: torch.Tensor, y: torch.Tensor, accumulate: int) -> None:
        if self._core.closed:
            raise EngineError("this trainer is closed; make a new one")
        self._steps.count.raise_faults(begins=True)
        self._given_losses.check()
        self._steps.follow_network()
        check_saving()
        check_no_hooks(self._core.module.params)
        if accumulate < 1 or x.shape[0] % accumulate:
            raise InputError(
                f"accumulate={accumulate} does not divide the batch of {x.shape[0]}; "
                "choose a divisor"
            )
        self._batches.check(x, y, self._steps.target_shape, self._steps.target_dtype)
