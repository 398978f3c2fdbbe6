"""Results of tuning as tables: the curve of step time over chunk size, and the choices made."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from ..graph import ChunkSizes
from ..planner.ir.settings import Choice
from ..units import Limit, format_bytes
from .tables import LOOK, NONE

MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Seconds of a step inside a budget with one chunk size for all maps. None where unknown."""

    chunk_size: int
    budget: Limit
    simulated_s: float | None
    measured_s: float | None


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The choice for a budget, with the seconds of a step before and after tuning."""

    budget: Limit
    choice: Choice
    simulated_s: float | None
    untuned_simulated_s: float | None
    measured_s: float | None
    untuned_measured_s: float | None


def chunks_text(chunks: ChunkSizes) -> str:
    """Chunk sizes in words: "16 MiB; 8 MiB for samples up to 4 MiB"."""
    parts = [f"{_size(size)} for samples up to {_size(1 << each)}" for each, size in chunks.classes]
    return "; ".join([_size(chunks.default), *parts])


def results_table(rows: Sequence[TuningResult], *, title: str, note: str | None = None) -> Table:
    """A line for each budget: the choice, and the seconds of a step before and after tuning."""
    table = Table(title=title, caption=note, **LOOK)
    times = ("simulated ms", "untuned", "measured ms", "untuned")
    for heading in ("budget", "policy", "lead", "copies", *times):
        table.add_column(heading, justify="right" if heading in (*times, "lead") else "left")
    for row in rows:
        choice = row.choice
        lead = "any" if choice.lead is None else str(choice.lead)
        seconds = (row.simulated_s, row.untuned_simulated_s, row.measured_s, row.untuned_measured_s)
        texts = map(_milliseconds, seconds)
        table.add_row(limit_text(row.budget), choice.policy, lead, choice.copies, *texts)
    return table


def curve_table(points: Sequence[CurvePoint], *, title: str) -> Table:
    """A line for each chunk size: the step time inside each budget, simulated and measured."""
    table = Table(title=title, **LOOK)
    budgets = list(dict.fromkeys(point.budget for point in points))
    table.add_column("chunk size", justify="right")
    for budget in budgets:
        for kind in ("simulated ms", "measured ms"):
            table.add_column(f"{limit_text(budget)}: {kind}", justify="right")
    for size in sorted({point.chunk_size for point in points}):
        at = {point.budget: point for point in points if point.chunk_size == size}
        cells = (at.get(budget, CurvePoint(size, budget, None, None)) for budget in budgets)
        pairs = ((cell.simulated_s, cell.measured_s) for cell in cells)
        table.add_row(_size(size), *(_milliseconds(s) for pair in pairs for s in pair))
    return table


def limit_text(budget: Limit) -> str:
    """A budget as it was asked for."""
    return budget if isinstance(budget, str) else format_bytes(budget)


def _milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds * MILLISECONDS:.2f}"


def _size(nbytes: int) -> str:
    return format_bytes(nbytes).replace(".00", "")
