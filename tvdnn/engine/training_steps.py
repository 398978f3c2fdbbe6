"""The steps of a trainer: planned by the shape of their batch, and run."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import InputError
from ..graph import Network
from ..ops import Settings
from ..ops.expand import Mode
from ..ops.loss import label_ranges
from ..planner.ir.timeline import Timeline
from ..runtime.kernel_set import kernel_set
from ..runtime.runner import Runner
from ..runtime.staging import BUFFERS
from ..trace.guards.inputs import check_inputs
from ..trace.trace import trace
from .accumulation import GradientSums
from .build import NOTHING_TO_TRAIN, check_master_weights, check_trainable
from .control import seed_of_step, write_control
from .core import Core
from .engine_request import Resolved
from .gradient_probe import GradientProbe, ProbedStep
from .losses import target_nbytes, target_shape
from .optimizer_state import Spec
from .optimizers import Planned, Updated, control_of, plan_optimizer, updated_by
from .rounding_check import judge
from .rounding_search import Verdict
from .state_changes import Copies, Copy, copied, restore_where, restored_after_failure
from .state_shards import StateShards, state_shards
from .step_count import StepCount
from .synchronized_group import check_alone, synchronizes
from .training_batches import TrainingBatches

Key: TypeAlias = tuple[tuple[int, ...], Mode, int]  # of a batch, its mode, the network's state
NEXT_PART: Final = 1 << 32  # added to the seed for each next part of a batch


class TrainingSteps:
    """Plans and runs training steps of `net` on batches of any number of samples.

    `settings` are those of a step on a batch like the example. Raises InputError where no parameter
    has requires_grad.
    """

    def __init__(
        self,
        net: nn.Module,
        core: Core,
        batches: TrainingBatches,
        settings: Settings,
        spec: Spec,
        seed: int,
    ) -> None:
        self._net, self._core, self._batches, self._settings = net, core, batches, settings
        self.seed = seed
        self.target_dtype = settings.losses[0].target_dtype
        # Whether a step that fails may have updated some parameters: on a CPU all are restored.
        ranks = settings.ranks
        apart = ranks is not None and (ranks.early or ranks.sharded)
        self.loses = apart and core.device.type == "cuda"
        self._updated: dict[Key, Updated] = {}
        self.state = core.look()
        shards = state_shards(core.requested.group, settings.ranks)
        self.optimizer = _make_optimizer(spec, list(core.module.trained().values()), shards)
        self._sums = GradientSums(core, spec, self.optimizer)
        self._made_for: Any = WeakIdKeyDictionary(dict.fromkeys(net.parameters()))
        network = self.runner(batches.first).schedule.graph.network
        self.target_shape = target_shape(network)
        together = core.requested.group is not None
        self.count = StepCount(core.control, self.optimizer, label_ranges(network), together)

    def run(self, x: torch.Tensor, y: torch.Tensor, accumulate: int) -> torch.Tensor:
        """Run one step on a batch in so many parts; returns the loss, a 0-d tensor."""
        if accumulate > 1:
            self._sums.start()
        mode = Mode.ACCUMULATE if accumulate > 1 else Mode.TRAIN
        shape = (x.shape[0] // accumulate, *x.shape[1:])
        runner = self._judged_runner(shape, mode, x, y)
        updated = self._write_control(runner, shape, mode, 1.0 / accumulate)
        with self._stepping(runner, mode, updated, self._snapshot()):
            return self._parts(runner, x, y) if accumulate > 1 else self._part(runner, x, y, mode)

    def timeline(self, x: torch.Tensor, y: torch.Tensor) -> Timeline:
        """Run one step on a GPU and return its measured timeline."""
        runner = self._judged_runner(tuple(x.shape), Mode.TRAIN, x, y)
        updated = self._write_control(runner, tuple(x.shape), Mode.TRAIN, 1.0)
        with self._stepping(runner, Mode.TRAIN, updated):
            self._core.module.change_state(runner.schedule.graph.network.changes)
            self._batches.fill(runner, x, y)
            self._begin_together(len(x), 1)
            with self._losing():
                return runner.timeline()

    def _judged_runner(
        self, shape: tuple[int, ...], mode: Mode, x: torch.Tensor, y: torch.Tensor
    ) -> Runner:
        """The runner of a step that begins; where it rounds maps, its gradients are measured.

        They are those of the batch's first part. Where they are over the limit, it is that of the
        exact plan.
        """
        runner, key = self.runner(shape, mode, begins=True), self.key(shape, mode)
        check_inputs(runner.schedule.graph.network, (x,))
        limit = self._core.new_plans.rounding.limit
        if limit is None or not self._core.new_plans.rounding.is_due(key, runner):
            return runner
        verdict = self.judge(runner, mode, x[: shape[0]], y[: shape[0]], limit)
        if verdict is not None:
            self._core.judged(key, verdict, partial(self._sums.updates, mode))
        return self.runner(shape, mode)

    def judge(
        self, runner: Runner, mode: Mode, x: torch.Tensor, y: torch.Tensor, limit: float
    ) -> Verdict | None:
        """The errors of a batch's gradients by rounded maps, and the maps over the limit.

        None where a label is no class.
        """
        updated = self._updated_by(runner, self.key(tuple(x.shape), mode))
        fill = partial(self._batches.fill, runner, x, y)
        step = ProbedStep(runner, mode, updated, fill, *self._next_step())
        return judge(GradientProbe(self._core, self._sums, self.optimizer, step), limit)

    def rounding_errors(self, x: torch.Tensor, y: torch.Tensor, limit: float) -> Verdict:
        """The errors of a batch's gradients by rounded maps of the present plan.

        Raises InputError for labels that are no classes, and for processes that train together:
        what one measures depends on what it finds.
        """
        if self._core.requested.group is not None:
            raise InputError("rounding errors are measured without a process_group; leave it out")
        found = self.judge(self.runner(tuple(x.shape)), Mode.TRAIN, x, y, limit)
        if found is None:
            self.count.raise_faults(wait=True)
        assert found is not None
        return found

    @contextmanager
    def _stepping(
        self, runner: Runner, mode: Mode, updated: Updated, snapshot: Sequence[Copy] = ()
    ) -> Iterator[None]:
        """A context that runs the passes of one step; a failure takes the step back."""
        network = runner.schedule.graph.network
        changed = self._core.module.state_before(network.changes)
        if runner.schedule.file_nbytes:  # a copy may fail when forward has moved statistics
            changed = [*changed, *copied(self._core.module.buffers.values())]
        with restored_after_failure([*snapshot, *changed]), self._core.on_device():
            with self._sums.summing(network, mode, updated, self._losing):
                yield
            self.count.faults.follow()
            restore_where(self._core.control.flag[0], changed)
        self.count.add(updated)

    def _losing(self) -> AbstractContextManager[None]:
        """A context in which a failure may lose the parameters."""
        return self.count.losing(early=self.loses)

    def follow_network(self) -> None:
        """Plan for the present network, if it has changed since the last step.

        Raises InputError for parameters that the optimizer does not have.
        """
        state = self._core.look()
        if state == self.state:
            return
        check_master_weights(self._net)
        trained = self._core.module.trained()
        self.optimizer.planned_state.follow(self.optimizer, trained, self._made_for)
        self._sums.forget()
        self._updated, self.state = {}, state

    def _part(
        self, runner: Runner, x: torch.Tensor, y: torch.Tensor, mode: Mode, first: int = 0
    ) -> torch.Tensor:
        """Run a batch, or its part from sample `first` on; returns the loss."""
        self._core.module.change_state(runner.schedule.graph.network.changes)
        self._batches.fill(runner, x, y, first)
        if mode is Mode.TRAIN:
            self._begin_together(len(x), 1)
        with self._losing() if mode is Mode.TRAIN else nullcontext():
            self._core.run(self.key(tuple(x.shape), mode))
        return _loss(runner)

    def _parts(self, runner: Runner, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Sum the gradients of the parts of a batch."""
        rows = runner.schedule.graph.network.batch
        starts = range(0, len(x), rows)
        self._batches.check_labels(runner, y, starts)
        self._begin_together(len(x), len(starts))
        losses = []
        for a, b, start in zip(x.split(rows), y.split(rows), starts, strict=True):
            losses.append(self._part(runner, a, b, Mode.ACCUMULATE, start))
            self._core.control.seed.add_(NEXT_PART)
        loss, group = torch.stack(losses).mean(), self._core.requested.group
        if group is not None:
            group.mean([loss], self._core.control)
        return loss

    def _begin_together(self, samples: int, parts: int) -> None:
        """Begin a step of all processes that train together, once its labels are checked."""
        group = self._core.requested.group
        if group is not None:
            kernels = kernel_set(self._core.kernels)
            group.begin(self._core.control, kernels, samples, parts, self.count.steps + 1)

    def key(self, shape: tuple[int, ...], mode: Mode = Mode.TRAIN) -> Key:
        return shape, mode, self.state

    def runner(
        self, shape: tuple[int, ...], mode: Mode = Mode.TRAIN, *, begins: bool = False
    ) -> Runner:
        """The runner for batches of `shape`, planned and captured when first asked for."""
        resolved, updates = partial(self._resolved, shape, mode), partial(self._sums.updates, mode)
        return self._core.runner(self.key(shape, mode), resolved, updates, begins=begins)

    def _resolved(self, shape: tuple[int, ...], mode: Mode) -> Resolved:
        self._core.first_step("tracing", 0.0)
        network = self._trace(shape)
        kept = self._sums.nbytes_beside(network) if mode is Mode.TRAIN else 0
        reserve = self._settings.reserve + kept
        reserve += self.optimizer.planned_state.idle_nbytes(self._trained_by(network))
        if self._settings.reserve:  # where inputs are staged, so are targets
            reserve += BUFFERS * target_nbytes(network, self._settings.losses)
        return self._core.resolve(network, replace(self._settings, mode=mode, reserve=reserve))

    def _trace(self, shape: tuple[int, ...]) -> Network:
        network = trace(self._net, (torch.empty(shape, device="meta"),), ordered=True)
        if self._core.requested.group is None and synchronizes(network):
            check_alone(self._net)
        return check_trainable(network, self._settings.losses)

    def _trained_by(self, network: Network) -> list[torch.Tensor]:
        params = self._core.module.trained()
        return [params[name] for name in network.params if name in params]

    def _write_control(
        self, runner: Runner, shape: tuple[int, ...], mode: Mode, scale: float
    ) -> Updated:
        """Write the settings of the runner's next step; returns the updated parameters."""
        updated = self._updated_by(runner, self.key(shape, mode))
        settings = control_of(self.optimizer, updated)
        write_control(self._core.control_bytes, settings, scale, *self._next_step())
        return updated

    def _next_step(self) -> tuple[int, int]:
        """The seed and the number of the next step."""
        return seed_of_step(self.seed, self.count.steps), self.count.steps + 1

    def _updated_by(self, runner: Runner, key: Key) -> Updated:
        if key not in self._updated:
            graph, params = runner.schedule.graph, self._core.module.params
            self._updated[key] = updated_by(graph, self.optimizer, params)
        return self._updated[key]

    def _snapshot(self) -> Copies:
        """Copies of tensors to restore after a failed step; none on a GPU, where none stops."""
        if self._core.device.type == "cuda":
            return []
        frozen = [param for param in self._core.module.params.values() if not param.requires_grad]
        trained = [
            tensor for name in self._core.module.trained() for tensor in self._sums.tensors_of(name)
        ]
        given = (*frozen, *trained, *self._core.module.buffers.values())
        return copied(tensor.detach() for tensor in given if tensor is not None)


def _make_optimizer(
    spec: Spec, trained: Sequence[torch.Tensor], shards: StateShards | None
) -> Planned:
    if not trained:
        raise InputError(NOTHING_TO_TRAIN)
    return plan_optimizer(spec, trained, shards)


def _loss(runner: Runner) -> torch.Tensor:
    (_, total) = runner.outputs("loss")[0]
    return total[0].clone()
