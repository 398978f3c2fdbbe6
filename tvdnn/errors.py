"""The errors that users of tvdnn can cause. Each names the thing, the number and the cure."""

from functools import partial
from typing import Any


class TvdnnError(Exception):
    """Any fault that tvdnn reports to its user."""


class BudgetError(TvdnnError):
    """No schedule fits the budget.

    `floor_nbytes` is the least budget in bytes at which the policy has a schedule. `step` names the
    step that sets this floor.
    """

    def __init__(self, message: str, *, floor_nbytes: int, step: str) -> None:
        super().__init__(message)
        self.floor_nbytes = floor_nbytes
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the keywords; by itself an exception is made again from its message alone."""
        return partial(BudgetError, floor_nbytes=self.floor_nbytes, step=self.step), self.args


class HostMemoryError(TvdnnError):
    """The plan needs more bytes on the host, or in another tier, than there are or are allowed."""


class FileError(TvdnnError):
    """A section could not be written to the file of a plan, or not be read back as it was.

    Parameters and optimizer state are as they were before the step.
    """


class UnsupportedOpError(TvdnnError):
    """The network holds ops that tvdnn does not know. Each is named with its module and line."""


class InputError(TvdnnError):
    """An argument's shape, dtype, device or value does not fit what was planned."""


class DeviceError(TvdnnError):
    """A call needs a GPU, a driver or a library that is missing."""


class ScheduleError(TvdnnError):
    """The checker refused a schedule. The message names the steps and the bytes."""


class EngineError(TvdnnError):
    """An engine was used out of turn, or after a step failed in it."""


class WorkerError(TvdnnError):
    """A worker process did not start, or its job raised an error that cannot be pickled."""


class WorkerEndedError(WorkerError):
    """A worker process ended before it answered."""
