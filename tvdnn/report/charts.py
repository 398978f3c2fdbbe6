"""Charts of a few characters: the load of each lane, and the memory of the device, over a step."""

from collections.abc import Sequence

from rich.table import Table

from ..planner.ir.schedule import Schedule, lane_name
from ..planner.ir.timeline import Span, Timeline
from ..planner.timing.memory_profile import memory_profile
from ..units import format_bytes, format_seconds
from .tables import LOOK

LEVELS = " ▁▂▃▄▅▆▇█"
CELLS = 60


def lanes_chart(schedule: Schedule, timeline: Timeline, *, cells: int = CELLS) -> Table:
    """A line for each lane, whose characters show its load over time, and a line for memory."""
    chart = Table.grid(padding=(0, 1))
    for lane in schedule.lanes:
        spans = [span for span in timeline.spans if span.lane is lane]
        busy_s = sum(span.end_s - span.start_s for span in spans)
        bar = bars(busy_shares(spans, timeline.step_s, cells))
        chart.add_row(lane_name(lane), bar, f"busy {format_seconds(busy_s)}")
    levels = memory_levels(schedule, timeline, cells)
    top = schedule.peak_nbytes or 1
    bar = bars([level / top for level in levels])
    chart.add_row("memory", bar, f"peak {format_bytes(schedule.peak_nbytes)}")
    return chart


def memory_table(schedule: Schedule, timeline: Timeline) -> Table:
    """Device memory by kind at the moment of most use, with the free bytes of the arena."""
    held = fullest(schedule, timeline)
    free = schedule.arena_nbytes - sum(held.values())
    parts = {**schedule.fixed, **held, "free in the arena": free}
    table = Table(title="device memory at its fullest", **LOOK)
    table.add_column("what")
    for heading in ("bytes", "share"):
        table.add_column(heading, justify="right")
    for what, nbytes in parts.items():
        if nbytes:
            table.add_row(what, format_bytes(nbytes), f"{nbytes / schedule.peak_nbytes:.1%}")
    return table


def fullest(schedule: Schedule, timeline: Timeline) -> dict[str, int]:
    """Bytes of the arena by kind at the moment of most use."""
    moments = (by_kind for _, by_kind in memory_profile(schedule, timeline))
    most = max(moments, key=lambda by_kind: sum(by_kind.values()), default={})
    return {kind.value: nbytes for kind, nbytes in most.items()}


def bars(shares: Sequence[float]) -> str:
    """A character for each share in [0, 1]. A share above 0 is never blank."""
    top = len(LEVELS) - 1
    heights = (0 if share <= 0 else max(1, round(min(1.0, share) * top)) for share in shares)
    return "".join(LEVELS[height] for height in heights)


def busy_shares(spans: Sequence[Span], step_s: float, cells: int) -> list[float]:
    """The busy share of each of `cells` equal slices of [0, step_s)."""
    shares = [0.0] * cells
    width_s = step_s / cells
    for span in spans if width_s else ():
        last = min(cells - 1, int(span.end_s / width_s))
        for cell in range(min(cells - 1, int(span.start_s / width_s)), last + 1):
            begin_s, end_s = cell * width_s, (cell + 1) * width_s
            covered_s = min(span.end_s, end_s) - max(span.start_s, begin_s)
            shares[cell] += max(0.0, covered_s) / width_s
    return shares


def memory_levels(schedule: Schedule, timeline: Timeline, cells: int) -> list[float]:
    """The most device bytes in use in each of `cells` equal slices of the step."""
    fixed = sum(schedule.fixed.values())
    step_s = timeline.step_s  # a pass over all spans
    levels = [0.0] * cells
    current = float(fixed)
    reached = 0
    for time_s, by_kind in memory_profile(schedule, timeline):
        cell = min(cells - 1, int(time_s / step_s * cells)) if step_s else 0
        for passed in range(reached, cell + 1):
            levels[passed] = max(levels[passed], current)
        current = fixed + sum(by_kind.values())
        levels[cell] = max(levels[cell], current)
        reached = cell
    return [max(level, float(fixed)) for level in levels]
