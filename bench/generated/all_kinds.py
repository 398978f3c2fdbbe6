"""KINDS with the kinds of all modules, registered in the order in which seeds draw them."""

from bench.generated import (  # noqa: F401 (each registers its kinds)
    banded,
    broadcast,
    computed,
    corners,
    forms,
    functionals,
    layers,
    lines,
    modules,
    motifs,
    owned,
    pointwise,
    reaching,
    rearrange,
    reduce,
    refused,
    refused_state,
    stages,
    sums,
    tokens,
    unary,
    views,
    written,
)
from bench.generated.kinds import KINDS

__all__ = ["KINDS"]
