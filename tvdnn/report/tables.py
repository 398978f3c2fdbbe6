"""Tables: benchmark rows and decisions about maps as rich tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..graph import CODECS
from ..planner.make import Rung
from ..planner.timing.calibrate import SHOWN, Calibration
from ..units import format_bytes
from .maps import BOTH, MapRow
from .rows import Row

MILLISECONDS = 1e3
# Of more maps than this, runs with one shape and decision share a line.
FOLD_FROM = 60
NONE = "-"
INFEASIBLE = "infeasible"
LOSSY = "lossy"
SAME_LOSSES = {True: "as keep", False: "DIFFER", None: NONE}
LOOK: Final[Any] = {"box": SIMPLE_HEAD, "title_justify": "left", "caption_justify": "left"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of rows: its heading, and the text of a row in it."""

    heading: str
    text: Callable[[Row], str]


COLUMNS = (
    Column("policy", lambda row: row.policy),
    Column("budget", lambda row: format_bytes(row.budget_bytes)),
    Column("floor", lambda row: _nbytes(row.floor_bytes)),
    Column("step ms", lambda row: INFEASIBLE if row.infeasible else _milliseconds(row.step_s)),
    Column("images/s", lambda row: _number(row.images_per_s, ",.0f")),
    Column("planned peak", lambda row: _nbytes(row.planned_peak_bytes)),
    Column("measured peak", lambda row: _nbytes(row.peak_bytes)),
    Column("average", lambda row: _nbytes(row.avg_bytes)),
    Column("baseline", lambda row: _nbytes(row.baseline_bytes)),
    Column("offloaded", lambda row: _nbytes(row.offloaded_bytes)),
    Column("coded", lambda row: _nbytes(row.coded_bytes or None)),
    Column("recode ms", lambda row: _milliseconds(row.recode_s or None)),
    Column("stall ms", lambda row: _milliseconds(row.stall_s)),
    Column("overlap", lambda row: _number(row.overlap, ".0%")),
    Column("predicted ms", lambda row: _milliseconds(row.predicted_s)),
    Column("bound ms", lambda row: _milliseconds(row.bound_s)),
    Column("slowdown", lambda row: _number(row.slowdown, ".2f")),
    Column("loss", lambda row: _number(row.loss, ".4f")),
    Column("losses", lambda row: LOSSY if row.lossy else SAME_LOSSES[row.equal]),
)


def infeasible_text(row: Row) -> str:
    """The text of an infeasible row, with its floor."""
    where = f" ({row.floor_step})" if row.floor_step else ""
    return f"infeasible: floor {_nbytes(row.floor_bytes)}{where}"


def subject(row: Row) -> str:
    """The title line of a table of rows like this one."""
    way = "simulated on" if row.simulated else "measured on"
    size = f"{row.image_size}x{row.image_size}"
    many = f", {row.world} processes" if row.world > 1 else ""
    return f"{row.net}({row.batch}) {size} {row.dtype}, {way} {row.hardware}{many}"


def rows_table(rows: Sequence[Row], *, note: str | None = None) -> Table:
    """A line for each policy and budget. The rows have one network, batch, type and machine.

    Columns without a value are left out.
    """
    table = Table(title=subject(rows[0]), caption=note, **LOOK)
    shown = [column for column in COLUMNS if any(column.text(row) != NONE for row in rows)]
    for number, column in enumerate(shown):
        table.add_column(column.heading, justify="left" if number == 0 else "right")
    for row in rows:
        texts = (column.text(row) for column in shown)
        table.add_row(*texts, style="dim" if row.infeasible else None)
    return table


def first_steps_table(rows: Sequence[Row]) -> Table | None:
    """A line for each row: seconds from the start to the end of the first step, by part.

    None where no row has them.
    """
    timed = [(row, row.first_step_s) for row in rows if row.first_step_s]
    if not timed:
        return None
    table = Table(title="seconds to the end of the first step", **LOOK)
    parts = list(dict.fromkeys(part for _, found in timed for part in found))
    for heading in ("policy", "budget", "all", *parts):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row, found in timed:
        texts = [_number(found.get(part), ".1f") for part in parts]
        whole = f"{sum(found.values()):.1f}"
        table.add_row(row.policy, format_bytes(row.budget_bytes), whole, *texts)
    return table


def sweep_table(rows: Sequence[Row]) -> Table:
    """A line for each budget: the milliseconds of each policy, and the lower bound."""
    table = Table(title=subject(rows[0]), **LOOK)
    policies = list(dict.fromkeys(row.policy for row in rows))
    for heading in ("budget", *(text for policy in policies for text in (f"{policy} ms", "bound"))):
        table.add_column(heading, justify="right")
    for budget in sorted({row.budget_bytes or 0 for row in rows}):
        at = {row.policy: row for row in rows if row.budget_bytes == budget}
        cells = (at[policy] for policy in policies)
        texts = (text for row in cells for text in (_step(row), _milliseconds(row.bound_s)))
        table.add_row(format_bytes(budget), *texts)
    return table


def ladder_table(title: str, rungs: Sequence[Rung]) -> Table:
    """A line for each means: the peak with it and all before, and its share of the first."""
    table = Table(title=title, **LOOK)
    for heading in ("means", "peak", "of all", "set by"):
        table.add_column(heading, justify="right" if heading in ("peak", "of all") else "left")
    for rung in rungs:
        share = f"{rung.nbytes / rungs[0].nbytes:.0%}"
        table.add_row(rung.means, format_bytes(rung.nbytes), share, rung.step)
    return table


def _step(row: Row) -> str:
    return INFEASIBLE if row.infeasible else _milliseconds(row.predicted_s)


def drift_table(feedback: Calibration) -> Table:
    """The ops, and directions of the link, with the largest errors of predicted seconds."""
    taken, expected = feedback.measured.step_s, feedback.predicted.step_s
    title = f"{_milliseconds(taken)} ms a step, predicted {_milliseconds(expected)}"
    table = Table(title=f"{title} ({feedback.relative_error:+.1%})", **LOOK)
    for heading in ("op", "measured ms", "predicted ms", "missed", "of the step"):
        table.add_column(heading, justify="left" if heading == "op" else "right")
    for drift in feedback.drifts[:SHOWN]:
        times = (drift.measured_s, drift.predicted_s, drift.error_s)
        texts = (f"{seconds * MILLISECONDS:.3f}" for seconds in times)
        table.add_row(drift.name, *texts, f"{feedback.share(drift):.1%}")
    return table


def maps_table(maps: Sequence[MapRow]) -> Table:
    """The decision for each map and its reason. Like maps of a long network share a line."""
    folded = len(maps) > FOLD_FROM
    title = f"{len(maps)} feature maps"
    table = Table(title=title, **LOOK)
    for heading in ("map", "shape", "bytes", "sections", "decision", "why"):
        table.add_column(heading, justify="right" if heading in ("bytes", "sections") else "left")
    if folded:
        for _, run in groupby(maps, key=lambda row: (row.decision, row.shape)):
            table.add_row(*_folded_cells(tuple(run)))
    else:
        for row in maps:
            table.add_row(*_map_cells(row))
    return table


def _map_cells(row: MapRow) -> tuple[str, ...]:
    nbytes = format_bytes(row.nbytes)
    return row.name, _shape(row), nbytes, str(row.sections), _decision(row), row.why


def _shape(row: MapRow) -> str:
    return "x".join(map(str, row.shape))


def _folded_cells(run: tuple[MapRow, ...]) -> tuple[str, ...]:
    if len(run) == 1:
        return _map_cells(run[0])
    nbytes = format_bytes(sum(row.nbytes for row in run))
    sections = str(sum(row.sections for row in run))
    names = f"{run[0].name} .. {run[-1].name}"
    shape = f"{len(run)} of {_shape(run[0])}"
    return names, shape, nbytes, sections, _decision(run[0]), run[0].why + ", ..."


def _decision(row: MapRow) -> str:
    parts = []
    for means in row.decision.split(BOTH):
        coded = row.sections_coded if means.split()[0] in CODECS else 0
        count = row.sections_away if means == "offload" else coded
        parts.append(means if count in (0, row.sections) else f"{means} {count} sections")
    return BOTH.join(parts)


def _nbytes(nbytes: float | None) -> str:
    return NONE if nbytes is None else format_bytes(nbytes)


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds * MILLISECONDS:.1f}"
