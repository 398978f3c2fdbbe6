"""Batches of a trainer: checked, and put where its steps read them."""

from collections.abc import Sequence

import torch

from ..errors import InputError
from ..ops.loss import TARGET
from ..planner.ir.schedule import Schedule
from ..runtime.runner import Runner
from ..runtime.staging import Staging
from ..units import format_bytes


class TrainingBatches:
    """Puts inputs [N, ...] and targets into the buffers of steps.

    Only the number of samples may differ from `example_inputs`. `reserve` are the device bytes of
    staging for inputs that lie on the host as the example does.
    """

    def __init__(self, example_inputs: torch.Tensor, device: torch.device) -> None:
        self.first = tuple(example_inputs.shape)
        self._device, self._staging = device, Staging(device)
        self.reserve = self._staging.nbytes_for(example_inputs)

    def check(
        self, x: torch.Tensor, y: torch.Tensor, target_shape: Sequence[int], dtype: str
    ) -> None:
        """Raise InputError for samples or targets of another shape, or targets of another type.

        `target_shape` [N, ...] is that of the example's targets, `dtype` the name of their type.
        """
        if tuple(x.shape[1:]) != self.first[1:]:
            raise InputError(
                f"x has samples of shape {list(x.shape[1:])}, the example "
                f"{list(self.first[1:])}; only the batch may vary"
            )
        wanted = [x.shape[0], *target_shape[1:]]
        if y.is_floating_point() != (dtype != "int64") or list(y.shape) != wanted:
            raise InputError(
                f"y is {y.dtype} {list(y.shape)}; it must be {dtype} of shape {wanted}"
            )

    def fill(self, runner: Runner, x: torch.Tensor, y: torch.Tensor, first: int = 0) -> None:
        """Copy a batch, or the part of one from sample `first` on, to the step's buffers."""
        self._check_staging(x, runner.schedule)
        name = runner.schedule.graph.network.inputs[0]
        runner.fill(name, self._staging.put(x, name))
        runner.fill(TARGET, self._staging.put(y, TARGET), first=first)
        self._staging.release()

    def check_labels(self, runner: Runner, y: torch.Tensor, starts: range) -> None:
        """Check the labels of all parts before the first, whose statistics are tracked."""
        if y.is_floating_point() or len(starts) == 1:
            return
        if y.device == self._device:
            runner.check_labels(y)
            return
        for start in starts:
            part = y[start : start + starts.step]
            runner.check_labels(self._staging.put(part, TARGET), first=start)
            self._staging.release()

    def _check_staging(self, x: torch.Tensor, schedule: Schedule) -> None:
        """Check that unplanned staging of a host input finds room in the budget."""
        nbytes = self._staging.nbytes_for(x)
        if nbytes <= self.reserve or schedule.budget_nbytes is None:
            return
        if schedule.peak_nbytes + nbytes > schedule.budget_nbytes:
            budget = schedule.budget_nbytes
            raise InputError(
                f"x lies on the host and takes {format_bytes(nbytes)} of staging, which the budget "
                f"{format_bytes(budget)} has no room for; pass example_inputs on the host, so that "
                "it is planned, or x on the device"
            )
