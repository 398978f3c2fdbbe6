"""Rows of a measured step: launches by kind of op, role and shape, beside their rooflines."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tvdnn.graph import Graph, Pass
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.ir.timeline import Timeline

SHEETS: Final = ("H200", "H100", "A100")  # data sheets, by a part of a GPU's name
SHOWN: Final = 12  # rows of a network that are printed


@dataclass(slots=True)
class LaunchRow:
    """The launches of one kind of op, role and shape in a step."""

    kind: str
    role: str
    reads: list[list[int]]  # shapes
    writes: list[list[int]]
    settings: dict[str, Any]  # those of the op by which kernels differ
    count: int = 0
    step_s: float = 0.0
    alone_s: float = 0.0
    roofline_s: float = 0.0

    @property
    def lost_s(self) -> float:
        return self.step_s - self.roofline_s


def rows_of(
    schedule: Schedule, timeline: Timeline, costs: Costs, roofline: Costs
) -> list[LaunchRow]:
    """The rows of a measured step, those that lose most first."""
    graph, found = schedule.graph, dict[str, LaunchRow]()
    for span in timeline.spans:
        index = schedule.steps[span.step].pass_index
        if index < 0:
            continue
        pass_ = graph.passes[index]
        row = _empty_row(graph, pass_)
        row = found.setdefault(json.dumps(asdict(row)), row)
        row.count += 1
        row.step_s += span.end_s - span.start_s
        rows = schedule.steps[span.step].stop - schedule.steps[span.step].start
        row.alone_s += costs.launch_s(pass_, rows)
        row.roofline_s += roofline.launch_s(pass_, rows)
    return sorted(found.values(), key=lambda row: row.lost_s, reverse=True)


def _empty_row(graph: Graph, pass_: Pass) -> LaunchRow:
    op = graph.ops[pass_.op]
    names = ("kernel", "stride", "dilation", "groups", "function")
    settings = {name: op.attrs[name] for name in names if name in op.attrs}
    reads, writes = (
        [list(graph.buffers[use.buffer].shape) for use in uses]
        for uses in (pass_.reads, pass_.writes)
    )
    return LaunchRow(op.kind, pass_.role, reads, writes, settings)


def sheet_of(gpu: str) -> str:
    """The data sheet of a GPU of this name; that of the first of SHEETS for others."""
    return next((sheet for sheet in SHEETS if sheet in gpu), SHEETS[0])


def lines(net: str, step_s: float, rows: Sequence[LaunchRow]) -> Iterable[str]:
    """What is printed of a network."""
    roofline_s = sum(row.roofline_s for row in rows)
    yield f"{net}: {1e3 * step_s:.2f} ms a step, {1e3 * roofline_s:.2f} ms by the roofline"
    for row in rows[:SHOWN]:
        seconds = row.step_s, row.alone_s, row.roofline_s
        each = " / ".join(f"{1e3 * value:.3f}" for value in seconds)
        yield f"  {each} ms, {row.count} x {row.kind} {row.role} {row.reads[:2]} {row.settings}"
