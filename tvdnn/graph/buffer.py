"""Buffers: the arrays that a step reads or writes, parameters aside, cut into sections."""

from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Final, NamedTuple

# Bytes of an element.
DTYPE_NBYTES = {"float32": 4, "bfloat16": 2, "int64": 8, "uint8": 1}
# Chunks of a run that fills the GPU: 64 MiB are some twelve waves on an H200.
RUN_CHUNKS = 4


class Kind(Enum):
    """The contents of a buffer. Reports stack memory by kind."""

    INPUT = "input"
    MAP = "map"
    GRAD = "gradient map"
    AUX = "auxiliary"
    WEIGHT = "weight copy"
    PARTIAL = "partial sum"
    PARAM_GRAD = "parameter gradient"


class Fact(Enum):
    """What all values have in common that lie in a buffer or that a pass writes."""

    NOT_NEGATIVE = "not negative"  # the sign is 0, of zeros too; NaN may have any sign
    TF32 = "TF32"  # float32 whose 13 low bits are 0; every NaN has the bits of rounding's NaN


class Form(NamedTuple):
    """How the values of a section lie: raw, or as the code of a codec.

    A code whose size depends on the values has a head of fixed size, which holds up to its capacity
    of values. The others lie in its tail, which has room for all of them.
    """

    codec: str
    share: int = 0  # the capacity of a head, in 256ths of the values
    tail: bool = False  # the tail alone

    def __str__(self) -> str:
        name = f"{self.codec} {self.share}/{SHARES}" if self.share else self.codec
        return f"tail of {name}" if self.tail else name


SHARES: Final = 256
RAW: Final = Form("raw")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense array whose first axis (samples, row tiles, or groups) is cut into sections."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    section: int  # rows of the first axis in one section, the unit of residency and of copies
    # Those of the values that forward leaves, until backward writes over them.
    facts: frozenset[Fact] = field(default=frozenset(), repr=False)
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
    """Bytes of a section."""

    default: int
    classes: tuple[tuple[int, int], ...] = ()  # (size class of a map, bytes of its sections)

    def of(self, row_nbytes: int) -> int:
        """Bytes of a section of maps of `row_nbytes` a sample."""
        return dict(self.classes).get(size_class(row_nbytes), self.default)


def size_class(row_nbytes: int) -> int:
    """The exponent of the least power of two that holds a sample of `row_nbytes`.

    Maps of one size class have sections of one size.
    """
    return max(0, row_nbytes - 1).bit_length()


def section_rows(rows: int, row_nbytes: int, chunk_size: int) -> int:
    """Rows of a section: the largest power of two whose bytes fit `chunk_size`, at least one."""
    fitting = max(1, chunk_size // max(1, row_nbytes))
    return min(1 << (fitting.bit_length() - 1), 1 << max(0, rows - 1).bit_length())
