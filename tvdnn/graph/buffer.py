"""Buffers: everything a step reads or writes that is not a parameter, cut into sections."""

from dataclasses import dataclass, field
from enum import Enum
from math import prod

DTYPE_NBYTES = {"float32": 4, "bfloat16": 2, "int64": 8, "uint8": 1}
RUN_CHUNKS = 4  # chunks of a run that fills the GPU: 64 MiB are some twelve waves on an H200


class Kind(Enum):
    """What a buffer holds; reports stack memory by it."""

    INPUT = "input"
    MAP = "map"
    GRAD = "gradient map"
    AUX = "auxiliary"
    WEIGHT = "weight copy"
    PARTIAL = "partial sum"
    PARAM_GRAD = "parameter gradient"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense array whose first axis (samples, their bands, or groups) is cut into sections.

    `section` is the number of rows of the first axis in one section: the unit of residency and of
    copy.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    section: int
    rows: int = field(init=False, repr=False, compare=False)
    row_nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.shape[0])
        object.__setattr__(self, "row_nbytes", prod(self.shape[1:]) * DTYPE_NBYTES[self.dtype])

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_nbytes

    @property
    def num_sections(self) -> int:
        return -(-self.rows // self.section)

    def bounds(self, index: int) -> tuple[int, int]:
        """Rows [start, stop) of section `index`."""
        return index * self.section, min(self.rows, (index + 1) * self.section)

    def section_nbytes(self, index: int) -> int:
        start, stop = self.bounds(index)
        return (stop - start) * self.row_nbytes

    def sections_of(self, start: int, stop: int) -> range:
        """Indices of the sections that rows [start, stop) touch."""
        return range(start // self.section, -(-stop // self.section))


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Bytes of a section: `default`, or what `classes` have for the class of its map."""

    default: int
    classes: tuple[tuple[int, int], ...] = ()

    def of(self, row_nbytes: int) -> int:
        """Bytes of a section of maps of `row_nbytes` a sample."""
        return dict(self.classes).get(map_class(row_nbytes), self.default)


def map_class(row_nbytes: int) -> int:
    """The least power of two that holds a sample: what has one needs sections of one size."""
    return max(0, row_nbytes - 1).bit_length()


def section_rows(rows: int, row_nbytes: int, chunk_size: int) -> int:
    """Rows in a section: the largest power of two whose bytes fit `chunk_size`, at least one."""
    fit = max(1, chunk_size // max(1, row_nbytes))
    return min(1 << (fit.bit_length() - 1), 1 << max(0, rows - 1).bit_length())
