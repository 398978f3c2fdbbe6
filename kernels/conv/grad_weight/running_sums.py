"""The running sums of a weight gradient: all splits at once, or in ranges."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GradWeightPlan:
    """The running sums of a weight gradient: float32 [splits, K, R, S, C/g].

    Every launch of a batch after the first must start at a multiple of `unit` samples.
    """

    splits: int
    unit: int
    step: int = 1  # a launch over a range of splits begins at a multiple of `step`

    @property
    def least_sums(self) -> int:
        """The least running sums of a launch of the whole batch; 0 where it takes all."""
        return self.step + 1 if self.step + 1 < self.splits else 0

    def ranges(self, rows: int) -> Iterator[range]:
        """The splits in ranges for which `rows` running sums, at least `step`, have room.

        The first range has what is left over.
        """
        most = rows // self.step * self.step
        assert most > 0, f"{rows} running sums have no room for {self.step} splits"
        for stop in range((self.splits - 1) % most + 1, self.splits + 1, most):
            yield range(max(0, stop - most), stop)
