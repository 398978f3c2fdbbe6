"""The README's figure: device memory and time of a step, side by side, as bars in SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tvdnn.units import GIB, format_bytes

LABELS_WIDTH, PANEL_WIDTH, TEXT_WIDTH = 190, 220, 84
LINE_HEIGHT, BAR_HEIGHT, TOP = 26, 14, 34
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.head { font-weight: 600 }
.peer { fill: #8b949e }
.own { fill: #2f81f7 }
.caller { fill: #2f81f7; opacity: 0.35 }
.budget { stroke: #d1242f; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the figure."""

    label: str
    is_peer: bool  # other people's training, shown for comparison
    counted_nbytes: int  # measured peak of what a budget covers
    allocated_nbytes: int  # the same with the caller's x, y and outputs
    budget_nbytes: int | None
    step_s: float


@dataclass(frozen=True, slots=True)
class Panel:
    """A column of bars: where it begins, and the value of a bar that fills it."""

    left: float
    full: float

    def at(self, value: float) -> float:
        """The place where a bar of this value ends."""
        return self.left + PANEL_WIDTH * value / self.full


def draw(title: str, lines: Sequence[Line]) -> str:
    """The figure. A red mark shows a line's budget, a pale end what the caller holds."""
    most = max(max(line.allocated_nbytes, line.budget_nbytes or 0) for line in lines)
    memory = Panel(LABELS_WIDTH, most)
    times = Panel(memory.at(most) + TEXT_WIDTH, max(line.step_s for line in lines))
    width, height = times.at(times.full) + TEXT_WIDTH, TOP + LINE_HEIGHT * len(lines)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}">',
        f"<style>\n{STYLE}\n</style>",
        _text(0, 16, title, "head"),
        _text(memory.left, 16, "device memory", "head"),
        _text(times.left, 16, "time of a step", "head"),
    ]
    for index, line in enumerate(lines):
        drawn += _bars(line, TOP + LINE_HEIGHT * index, memory, times)
    return "\n".join([*drawn, "</svg>\n"])


def _bars(line: Line, top: int, memory: Panel, times: Panel) -> Iterator[str]:
    base, kind = top + BAR_HEIGHT - 2, "peer" if line.is_peer else "own"
    budget = f", {line.budget_nbytes / GIB:g} GiB" if line.budget_nbytes else ""
    yield _text(0, base, line.label + budget)
    yield _bar(memory.left, memory.at(line.counted_nbytes), top, kind)
    if line.allocated_nbytes > line.counted_nbytes:
        yield _bar(memory.at(line.counted_nbytes), memory.at(line.allocated_nbytes), top, "caller")
    if line.budget_nbytes:
        mark = memory.at(line.budget_nbytes)
        yield f'<path class="budget" d="M{mark:.1f} {top - 3}v{BAR_HEIGHT + 6}"/>'
    end = memory.at(max(line.allocated_nbytes, line.budget_nbytes or 0))
    yield _text(end + 6, base, format_bytes(line.allocated_nbytes))
    yield _bar(times.left, times.at(line.step_s), top, kind)
    yield _text(times.at(line.step_s) + 6, base, f"{line.step_s * 1e3:.1f} ms")


def _bar(left: float, right: float, top: int, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{top}" '
        f'width="{right - left:.1f}" height="{BAR_HEIGHT}"/>'
    )


def _text(left: float, base: float, text: str, kind: str = "") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f'<text{chosen} x="{left:.1f}" y="{base:g}">{escape(text)}</text>'
