"""The count of a trainer's steps, which goes back where labels were no classes."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ..errors import EngineError, InputError
from ..kernels.copy.labels import OTHER_STEPS
from ..ops.operator import Control
from .label_faults import LabelFaults
from .optimizers import Planned, Updated, count_step
from .process_group import DIFFERENT_STEPS

DISTANCE: Final = 2  # steps after which processes that train together tell a fault, on a GPU
LOST: Final = (
    "with early_updates or shards the step that failed may have updated some parameters and not"
    " others: they are lost; make a new trainer, and load a checkpoint"
)
RECENT_STEPS: Final = 4096  # more than a GPU's queue holds while the host goes on


class StepCount:
    """Counts the steps of a trainer in `steps`, and beside the parameters of its optimizer.

    `label_ranges` are the number of classes and the ignored label of each loss.
    """

    def __init__(
        self,
        control: Control,
        optimizer: Planned,
        label_ranges: Sequence[tuple[int, int]],
        together: bool = False,
    ) -> None:
        self.steps, self._lost = 0, False
        self.faults = LabelFaults(control)
        self._together, self._distance = together, DISTANCE if control.flag.is_cuda else 1
        self._optimizer, self._label_ranges = optimizer, label_ranges
        self._recent: deque[tuple[int, Updated]] = deque(maxlen=RECENT_STEPS)

    def add(self, updated: Updated) -> None:
        """Count a step that was run."""
        self.steps += 1
        self._recent.append((self.steps, updated))
        count_step(self._optimizer, updated)

    @contextmanager
    def losing(self, *, early: bool) -> Iterator[None]:
        """A context in which a failure loses the parameters, where some are updated `early`.

        Raises EngineError then.
        """
        try:
            yield
        except BaseException as error:
            self._lost = early
            if early and isinstance(error, Exception):
                raise EngineError(f"{error}; {LOST}") from error
            raise

    def check_kept(self) -> None:
        """Raise EngineError where a failure has lost the parameters."""
        if self._lost:
            raise EngineError(LOST)

    def forget(self) -> None:
        """Forget faults and recent steps, as before another state is loaded."""
        self.faults.clear()
        self._recent.clear()

    def raise_faults(self, *, wait: bool = False, begins: bool = False) -> None:
        """Raise InputError for a label that is no class, if one is known, and count back.

        With `wait` the steps on their way are waited for. Processes that train together count back
        where a step `begins`, all at the same one: they have run as many steps then.
        """
        self.check_kept()
        if self._together and begins:
            fault = self.faults.found_before(self.steps + 1 - self._distance)
        else:
            fault = self.faults.found(wait=wait)
        if fault is None:
            return
        step, sample, label = fault
        if self._together and not begins:
            raise InputError(self._told(step, sample, label))
        for number, updated in self._recent:
            if number >= step:
                count_step(self._optimizer, updated, by=-1)
        self._recent.clear()
        self.steps = step - 1
        self.faults.clear()
        raise InputError(self._told(step, sample, label))

    def _told(self, step: int, sample: int, label: int) -> str:
        """A fault in words."""
        unchanged = "Neither that step nor those after it have changed anything"
        if sample == -OTHER_STEPS.value:
            return DIFFERENT_STEPS.format(step=step)
        if sample < 0:
            return (
                f"step {step}: another process has a label that is no class, which its own error"
                f" tells. {unchanged}, in no process: go on once that is corrected"
            )
        known = " and ".join(
            f"a class from 0 to {classes - 1} or ignore_index {ignored}"
            for classes, ignored in self._label_ranges
        )
        return (
            f"step {step}: sample {sample} has label {label}; labels are {known}. {unchanged}:"
            " correct the labels and go on"
        )
