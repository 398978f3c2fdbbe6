"""Figures: the lanes of a step over its memory, and step times over budgets and chunk sizes."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import InputError
from ..planner.ir.schedule import Lane, Schedule, lane_name
from ..planner.ir.timeline import Timeline, copy_waits
from ..units import GIB, MIB, format_bytes
from .rows import Row
from .traces import Moment, Work, moments, work_of
from .tuning import CurvePoint, limit_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES: Final = (".png", ".svg")
COLORS: Final = {
    Work.FORWARD: "#2f81f7",
    Work.BACKWARD: "#8957e5",
    Work.UPDATE: "#6e7781",
    Work.AGAIN: "#bf8700",
    Work.RECODE: "#bf3989",
    Work.OFFLOAD: "#1a7f37",
    Work.PREFETCH: "#57ab5a",
    Work.REDUCE: "#0a7ea4",
    Work.STALL: "#d1242f",
}
SHADES: Final = (
    "#6e7781",
    "#8c959f",
    "#afb8c1",
    "#d0d7de",
    "#8957e5",
    "#bf8700",
    "#2f81f7",
    "#bf3989",
    "#57ab5a",
)
MILLISECONDS: Final = 1e3
SIZE: Final = (11.0, 6.5)  # inches


def draw(
    schedule: Schedule, timeline: Timeline, path: Path, *, title: str, kept_nbytes: int | None
) -> None:
    """Write the figure to `path`, which ends in one of SUFFIXES.

    `kept_nbytes`, the peak of `keep`, is drawn as a line beside the budget. Raises InputError for
    another suffix, and where matplotlib is missing.
    """
    figure = _figure(path)
    lanes, memory = figure.subplots(2, sharex=True, height_ratios=(1, 2))
    lanes.set_title(title)
    _draw_lanes(lanes, schedule, timeline)
    _draw_memory(memory, tuple(moments(schedule, timeline)), timeline)
    _draw_limits(memory, {"budget": schedule.budget_nbytes, "keep's peak": kept_nbytes})
    memory.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path)


def draw_sweep(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Write the step times of each policy over its budgets to `path`, with their lower bounds.

    Raises InputError as `draw` does.
    """
    figure = _figure(path)
    axes = figure.subplots()
    for policy in dict.fromkeys(row.policy for row in rows):
        feasible = [row for row in rows if row.policy == policy and not row.infeasible]
        budgets = [(row.budget_bytes or 0) / GIB for row in feasible]
        times = [(row.predicted_s or 0.0) * MILLISECONDS for row in feasible]
        bounds = [(row.bound_s or 0.0) * MILLISECONDS for row in feasible]
        (line,) = axes.plot(budgets, times, marker="o", label=policy)
        axes.plot(budgets, bounds, linestyle=":", color=line.get_color())
    axes.set_title(f"{title}; dotted: no schedule takes less")
    axes.set_xlabel("budget, GiB")
    axes.set_ylabel("ms a step")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)


def draw_curve(points: Sequence[CurvePoint], path: Path, *, title: str) -> None:
    """Write the step times of each budget over chunk sizes to `path`, simulated and measured.

    Raises InputError as `draw` does.
    """
    figure = _figure(path)
    axes = figure.subplots()
    for budget in dict.fromkeys(point.budget for point in points):
        color = None
        for kind, style in (("simulated", ":"), ("measured", "-")):
            times = [
                (point.chunk_size / MIB, seconds * MILLISECONDS)
                for point in points
                if point.budget == budget and (seconds := getattr(point, f"{kind}_s")) is not None
            ]
            label = f"{limit_text(budget)}, {kind}"
            if times:
                (line,) = axes.plot(*zip(*times, strict=True), style, marker="o", color=color)
                line.set_label(label)
                color = line.get_color()
    axes.set_title(title)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("chunk size, MiB")
    axes.set_ylabel("ms a step")
    axes.legend()
    figure.savefig(path)


def _figure(path: Path) -> Any:
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} ends in neither {' nor '.join(SUFFIXES)}")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)
    except ImportError:
        raise InputError('figures need matplotlib: pip install "tvdnn[plot]"') from None
    return Figure(figsize=SIZE, layout="constrained")


def _draw_lanes(axes: "Axes", schedule: Schedule, timeline: Timeline) -> None:
    """A row for each lane from the top. The row of compute also shows waits for copies."""
    lanes = schedule.lanes
    bars = {(work, lane): list[tuple[float, float]]() for work in Work for lane in lanes}
    for span in timeline.spans:
        work = work_of(schedule.graph, schedule.steps[span.step])
        bars[work, span.lane].append((span.start_s, span.end_s))
    bars[Work.STALL, Lane.COMPUTE] += copy_waits(schedule, timeline.spans)
    labelled = set[Work]()
    for (work, lane), spans in bars.items():
        if spans:
            row = len(lanes) - 1 - lanes.index(lane)
            extents = [(s * MILLISECONDS, (e - s) * MILLISECONDS) for s, e in spans]
            label = None if work in labelled else work.value
            axes.broken_barh(extents, (row + 0.1, 0.8), color=COLORS[work], label=label)
            labelled.add(work)
    names = [lane_name(lane) for lane in reversed(lanes)]
    axes.set_yticks([row + 0.5 for row in range(len(names))], names)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _draw_memory(axes: "Axes", found: Sequence[Moment], timeline: Timeline) -> None:
    """Bytes stacked by purpose, constant from one change to the next."""
    purposes = [name for name in found[0].nbytes if any(m.nbytes[name] for m in found)]
    end_s = max(span.end_s for span in timeline.spans)
    times: list[Any] = [m.time_s * MILLISECONDS for m in found] + [end_s * MILLISECONDS]
    levels = [[m.nbytes[name] / GIB for m in (*found, found[-1])] for name in purposes]
    shades = dict(zip(found[0].nbytes, cycle(SHADES), strict=False))
    colors = [shades[name] for name in purposes]
    axes.stackplot(times, levels, step="post", labels=purposes, colors=colors)
    axes.set_xlabel("ms" if not timeline.simulated else "ms, simulated")
    axes.set_ylabel("device GiB")
    axes.set_xlim(times[0], times[-1])


def _draw_limits(axes: "Axes", limits: dict[str, int | None]) -> None:
    for style, (name, nbytes) in zip(("-", "--"), limits.items(), strict=True):
        if nbytes is not None:
            label = f"{name}: {format_bytes(nbytes)}"
            axes.axhline(nbytes / GIB, color=COLORS[Work.STALL], linestyle=style, label=label)
