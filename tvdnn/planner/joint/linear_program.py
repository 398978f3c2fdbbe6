"""A linear program that is solved again and again, each time from the basis of the last optimum."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import highspy
import numpy as np
from scipy.sparse import vstack

from .rows import Array, SparseRows

# One thread, no clock, and the same choices every time: the optimum is the same on every machine.
OPTIONS: dict[str, bool | int | str] = {
    "threads": 1,
    "parallel": "off",
    "random_seed": 0,
    "solver": "simplex",
    "simplex_strategy": 1,  # dual: changed bounds leave its basis feasible
}


FEW_ITERATIONS = 500  # from the last basis: where it takes more, a start without it is faster
ALL_ITERATIONS = 1_000_000
# Factors up to this are none in a coarse program. Those of a few hundred bytes beside 100 GiB had
# single steps of the simplex take seconds (U-Net for one image of 8192 x 8192, 2026-11-26).
NEGLIGIBLE = 1e-8


class Optimum(NamedTuple):
    """The values of the columns, and the prices of columns and rows."""

    values: Array
    column_prices: Array  # by how much the sum grows with a column, at its bound
    row_prices: Array  # by how much the sum grows with a row's limit


# Calls in which the simplex makes no iteration, from which on a run ends without an optimum. Runs
# that find one had 184 at most, on six networks in a quarter of keep's memory and less. An
# infeasible program had the simplex refuse thousands of changes of its basis, and a plan take an
# hour (ResNet-18 in a fifth of it, 2026-11-27). No objective bound ends that: presolved programs
# have none.
MOST_IDLE_CALLS = 500


class _Silent(highspy.Highs):
    """HiGHS without output, even where callbacks are enabled."""

    def enableCallbacks(self) -> None:  # noqa: N802
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


class LinearProgram:
    """Minimizes a sum of columns within bounds.

    The first rows are at most their limits, the others equal to theirs. A `coarse` program leaves
    out the smallest factors.
    """

    def __init__(
        self, costs: Array, most: SparseRows, equal: SparseRows, *, coarse: bool = False
    ) -> None:
        model, width = highspy.HighsLp(), len(costs)
        matrix = vstack((most.matrix(width), equal.matrix(width)), format="csr")
        limits = np.concatenate((most.limits, equal.limits))
        lower = np.where(np.arange(len(limits)) < len(most.limits), -np.inf, limits)
        model.num_col_, model.num_row_ = width, len(limits)
        model.col_cost_ = costs
        model.col_lower_, model.col_upper_ = np.zeros(width), np.full(width, np.inf)
        model.row_lower_, model.row_upper_ = lower, limits
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = matrix.indptr
        model.a_matrix_.index_ = matrix.indices
        model.a_matrix_.value_ = matrix.data
        self._highs = _Silent()
        for name, value in OPTIONS.items():
            self._highs.setOptionValue(name, value)
        if coarse:
            self._highs.setOptionValue("small_matrix_value", NEGLIGIBLE)
        self._highs.passModel(model)
        self._calls = 0
        self._highs.cbSimplexInterrupt += self._watch
        self._highs.disableCallbacks()
        self._most_iterations = ALL_ITERATIONS
        self._columns = np.arange(width, dtype=np.int32)

    def limit(self, rows: Sequence[int], limits: Array) -> None:
        """Change the limits of inequalities."""
        for row, limit in zip(rows, limits.tolist(), strict=True):
            self._highs.changeRowBounds(row, -inf, limit)

    def change(self, row: int, column: int, factor: float) -> None:
        """Change the factor of a column in a row."""
        self._highs.changeCoeff(row, column, factor)

    def solve(self, low: Array, high: Array, most: float = inf) -> Optimum | None:
        """The optimum with columns in these bounds; None where there is none of at most `most`."""
        highs, statuses = self._highs, highspy.HighsModelStatus
        highs.changeColsBounds(len(self._columns), self._columns, low, high)
        highs.setOptionValue("objective_bound", most)
        highs.setOptionValue("simplex_iteration_limit", self._most_iterations)
        self._run()
        if highs.getModelStatus() == statuses.kIterationLimit:
            highs.clearSolver()
            highs.setOptionValue("simplex_iteration_limit", ALL_ITERATIONS)
            self._run()
        if highs.getModelStatus() == statuses.kInterrupt:
            highs.clearSolver()
        self._most_iterations = FEW_ITERATIONS
        solved = highs.getModelStatus() == statuses.kOptimal
        if not solved or highs.getInfo().objective_function_value > most:
            return None
        found = highs.getSolution()
        return Optimum(*map(np.array, (found.col_value, found.col_dual, found.row_dual)))

    def _run(self) -> None:
        """Run HiGHS. Beyond runs it has no callbacks, which would keep it alive."""
        self._calls = 0
        self._highs.enableCallbacks()
        self._highs.run()
        self._highs.disableCallbacks()

    def _watch(self, event: highspy.HighsCallbackEvent) -> None:
        """Interrupt a run that has made no progress for too long."""
        self._calls += 1
        if self._calls - event.data_out.simplex_iteration_count > MOST_IDLE_CALLS:
            event.interrupt()
