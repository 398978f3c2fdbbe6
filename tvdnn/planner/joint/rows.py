"""SparseRows of a linear program, collected one by one."""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Array: TypeAlias = npt.NDArray[np.float64]
Term: TypeAlias = tuple[int, float]  # a column, and its factor


class SparseRows:
    """Sparse rows and their limits."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._limits: list[float] = []

    def add(self, terms: Iterable[Term], limit: float) -> int:
        """Add the row of the sum of these terms. Its number."""
        row = len(self._limits)
        for column, value in terms:
            self._rows.append(row)
            self._columns.append(column)
            self._values.append(value)
        self._limits.append(limit)
        return row

    def matrix(self, width: int) -> csr_array:
        """The rows over so many columns."""
        shape = len(self._limits), width
        return csr_array((self._values, (self._rows, self._columns)), shape=shape)

    @property
    def limits(self) -> Array:
        return np.array(self._limits)
