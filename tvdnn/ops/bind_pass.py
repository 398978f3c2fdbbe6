"""What every launch of a pass shares, whatever tensors the launch is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..graph import Graph, Pass
from .concat_views import Channels
from .expand import DTYPES
from .operator import Control, Launch
from .registry import role


@dataclass(frozen=True, slots=True)
class BoundPass:
    """The function that launches a pass, and the arguments that are the same in each launch."""

    run: Callable[[Launch], None]
    attrs: Mapping[str, Any]
    precision: str
    rounded: tuple[Channels | None, ...]
    output_stored: str
    domain: int

    def launch(
        self,
        kernels: Any,
        reads: tuple[torch.Tensor, ...],
        writes: tuple[torch.Tensor, ...],
        params: tuple[torch.Tensor | None, ...],
        updates: tuple[tuple[torch.Tensor | None, ...], ...],
        rows: tuple[int, int],
        control: Control,
        beside: tuple[int, int] = (0, 0),
    ) -> Launch:
        """The arguments of a launch over `rows` of the pass's domain."""
        before = control.rank * self.domain
        return Launch(
            kernels, reads, writes, params, updates, self.attrs, self.precision, self.rounded,
            self.output_stored, *rows, control, beside, before,
        )  # fmt: skip


def bind_pass(graph: Graph, pass_: Pass) -> BoundPass:
    """The pass, bound to its op's function and settings."""
    op, precision = graph.ops[pass_.op], DTYPES[graph.dtype][1]
    return BoundPass(
        run=role(op.kind, pass_.role),
        attrs={**op.attrs, **pass_.attrs},
        precision=precision,
        rounded=pass_.rounded,
        output_stored=precision if pass_.op in graph.rounded_ops else "ieee",
        domain=pass_.domain,
    )
