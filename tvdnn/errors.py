"""The errors that users of tvdnn can cause; each names the thing, the number and the cure."""

from functools import partial
from typing import Any


class TvdnnError(Exception):
    """Any fault that tvdnn reports to its user."""


class BudgetError(TvdnnError):
    """No schedule fits the budget.

    `floor_nbytes` is the least budget at which the policy has a schedule and `step` the step that
    sets it.
    """

    def __init__(self, message: str, *, floor_nbytes: int, step: str) -> None:
        super().__init__(message)
        self.floor_nbytes = floor_nbytes
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the keywords; by itself an exception is made again from its message alone."""
        return partial(BudgetError, floor_nbytes=self.floor_nbytes, step=self.step), self.args


class HostMemoryError(TvdnnError):
    """The plan needs more host memory than allowed or than the host has."""


class UnsupportedOpError(TvdnnError):
    """The network holds an op that tvdnn does not know."""


class InputError(TvdnnError):
    """An argument's shape, dtype, device or value does not fit what was planned."""


class DeviceError(TvdnnError):
    """What was asked for needs a GPU, driver or library that is not there."""


class ScheduleError(TvdnnError):
    """The checker refused a schedule."""


class EngineError(TvdnnError):
    """An engine was used out of turn, or after a step failed in it."""


class WorkerError(TvdnnError):
    """A worker process did not start, or its job failed in a way that no pickle can tell."""


class WorkerEndedError(WorkerError):
    """A worker process ended before it answered."""
