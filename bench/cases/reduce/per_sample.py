"""Running sums of what launches leave for each sample."""

from bench.cases.case import At, KernelCase, checked
from bench.cases.launch import Launch, launching
from bench.cases.operands import Operands, Shape
from tvdnn.kernels.norm.layer_norm import LONGEST, layer_norm_chunks
from tvdnn.kernels.reduce.per_sample import add_sample_sums, sample_splits


def _add(
    o: Operands, size: Shape, chunks: int = 20, kinds: int = 2, kind: int = 1, first: bool = True
) -> Launch:
    sums = o.randn(size[0], chunks, kinds, size[-1])
    running = o.randn(sample_splits(chunks), size[-1])
    into = o.out(*running.shape) if first else o.updated(running)
    return launching(add_sample_sums, sums, into, kind=kind, first=first)


# Rows and columns whose gradients layer normalization leaves.
ROWS = ((3136, 96), (49, 768), (1, LONGEST - 1), (1, LONGEST), (2, LONGEST + 1))
CASES = (
    KernelCase(
        add_sample_sums,
        _add,
        checked(first=[True, False], kind=[0, 1]),
        [
            At(
                (2, columns),
                {"chunks": layer_norm_chunks(rows, columns), "first": False, "kind": 0},
            )
            for rows, columns in ROWS
        ],
    ),
)
