"""Write the README's figure and result tables from the files in bench/results.

    python -m bench.tables

Each file holds {"title", "note", "environment", "rows"}; a row has the keys of
`tvdnn.report.rows.Row` and any of those that the extra columns below read.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bench import kernel_rows, markdown, networks, releases
from bench.figure import Line, draw
from tvdnn.graph import ChunkSizes
from tvdnn.report.rows import Row
from tvdnn.report.tables import COLUMNS, NONE, infeasible_text
from tvdnn.report.tuning import chunks_text
from tvdnn.units import format_bytes

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"
KERNELS = RESULTS / "kernels"
NETWORKS = RESULTS / "networks"
FIGURE = "overview.svg"
HEADLINE = "VGG-16, batch 256, bf16"  # whose results the figure shows, if there are any
KEEP = "keep"
PEERS = "torch"  # how the policies begin that are torch's own training
LEGEND = """\
Grey is torch, blue is tvdnn, a red mark is the budget; the pale end is what the caller holds
(inputs and outputs). Both sides are counted by `torch.cuda.max_memory_allocated`. All rows:
[Results](#results)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a results file: its keys that every row has, and all of them."""

    row: Row
    values: Mapping[str, Any]

    @property
    def is_peer(self) -> bool:
        return self.row.policy.startswith(PEERS)

    @property
    def allocated_nbytes(self) -> int | None:
        """Most bytes by torch's own counter, the caller's x, y and outputs included."""
        return self.values.get("max_memory_allocated", self.row.peak_bytes)


@dataclass(frozen=True, slots=True)
class Result:
    """A results file."""

    title: str
    note: str
    environment: Mapping[str, Any]
    entries: tuple[Entry, ...]


Text = Callable[[Entry], str]


def read(folder: Path) -> tuple[Result, ...]:
    """The results in a folder, in the order of their files' names."""
    return tuple(_result(json.loads(path.read_text())) for path in sorted(folder.glob("*.json")))


def _result(values: Mapping[str, Any]) -> Result:
    entries = tuple(Entry(_row(row), row) for row in values["rows"])
    return Result(
        values["title"], values.get("note") or "", values.get("environment") or {}, entries
    )


def _row(values: Mapping[str, Any]) -> Row:
    """The row in `values`; what a peer's row does not say is None."""
    return Row(**{field.name: values.get(field.name) for field in fields(Row)})


def _reported(heading: str) -> tuple[str, Text]:
    """The column that reports have under this heading."""
    text = next(column.text for column in COLUMNS if column.heading == heading)
    return heading, lambda entry: text(entry.row)


def _milliseconds(*keys: str) -> Text:
    return _joined(lambda seconds: f"{seconds * 1e3:.1f}", keys)


def _nbytes(*keys: str) -> Text:
    return _joined(format_bytes, keys)


def _joined(form: Callable[[float], str], keys: Sequence[str]) -> Text:
    """The values under `keys` with slashes between; nothing where one is missing."""

    def text(entry: Entry) -> str:
        values = [entry.values.get(key) for key in keys]
        return NONE if None in values else " / ".join(form(value) for value in values)

    return text


def _share(key: str) -> Text:
    return _joined(lambda share: f"{share:.1%}", (key,))


def _network(entry: Entry) -> str:
    return f"{entry.row.net}({entry.row.batch})"


def _time(entry: Entry) -> str:
    if entry.row.infeasible:
        return infeasible_text(entry.row)
    return _milliseconds("step_s")(entry)


def _prediction(entry: Entry) -> str:
    """The predicted time, and how far it lies from the measured one; no prediction has delays."""
    row = entry.row
    if row.predicted_s is None or not row.step_s or entry.values.get("random_delays"):
        return NONE
    return f"{row.predicted_s * 1e3:.1f} ({row.predicted_s / row.step_s - 1:+.1%})"


def _wait_share(entry: Entry) -> str:
    rate, link = entry.values.get("wait_rate"), entry.values.get("link_rate")
    return f"{rate / link:.0%}" if rate and link else NONE


def _ratio(*keys: str) -> Text:
    return _joined(lambda ratio: f"{ratio:.2f}", keys)


def _at_parts(key: str) -> tuple[str, ...]:
    """The keys of a sweep's values at the floor and at shares of the way from there."""
    return tuple(f"{key}_{part}" for part in ("floor", "quarter", "half", "three_quarters"))


def _text(key: str) -> Text:
    return lambda entry: entry.values.get(key) or NONE


def _equal(entry: Entry) -> str:
    return {True: "yes", False: "NO"}.get(entry.values.get("equal"), NONE)


def _tuned_sizes(entry: Entry) -> str:
    """The chunk sizes that tuning found; of other rows nothing."""
    found = entry.values.get("chunks")
    return chunks_text(ChunkSizes(found["default"], found["classes"])) if found else NONE


TABLE: tuple[tuple[str, Text], ...] = (
    ("network", _network),
    _reported("policy"),
    _reported("budget"),
    ("inside", _nbytes("inside_bytes")),
    ("tuned to sections of", _tuned_sizes),
    ("random delays", lambda entry: "yes" if entry.values.get("random_delays") else NONE),
    ("step ms", _time),
    _reported("images/s"),
    ("predicted ms", _prediction),
    _reported("bound ms"),
    ("relaxed ms", _milliseconds("relaxed_s")),
    _reported("slowdown"),
    _reported("planned peak"),
    _reported("measured peak"),
    ("by torch's counter", _nbytes("max_memory_allocated")),
    _reported("average"),
    _reported("offloaded"),
    _reported("stall ms"),
    _reported("overlap"),
    ("computing / link ms", _milliseconds("compute_s", "link_s")),
    ("link used while waiting", _wait_share),
    ("first / last 100 steps ms", _milliseconds("first_100_s", "last_100_s")),
    ("device / host growth", _nbytes("device_growth_bytes", "host_growth_bytes")),
    ("kernels run", _share("busy_share")),
    ("first step s, caches empty", _joined(lambda seconds: f"{seconds:.1f}", ("cold_s",))),
    ("same bits as keep", _equal),
    ("seeds", _joined(str, ("seeds",))),
    ("losses' error", _ratio("loss_ratio")),
    ("gradients' error, median", _ratio("gradient_ratio")),
    ("largest", _ratio("worst_gradient_ratio")),
    ("of", _text("worst_gradient")),
    ("gradients within 1.25", _share("gradients_within")),
    ("maps below the baseline", _share("maps_saved")),
    ("within 1% of the best", _share("best_within")),
    ("most of the best", _ratio("worst_to_best")),
    ("within 5% of the ILP", _share("ilp_within")),
    ("most of the ILP", _ratio("worst_to_ilp")),
    ("budgets", _joined(str, ("num_budgets",))),
    ("slower at the floor / 1/4 / 1/2 / 3/4", _ratio(*_at_parts("slower"))),
    ("of the bound there", _ratio(*_at_parts("above"))),
    ("at commit", _text("commit")),
)


def table(result: Result) -> str:
    """The rows as Markdown; columns in which no row has anything are left out."""
    columns = [
        (heading, [text(entry) for entry in result.entries])
        for heading, text in TABLE
        if heading != "network" or len({_network(entry) for entry in result.entries}) > 1
    ]
    shown = [(heading, cells) for heading, cells in columns if set(cells) != {NONE}]
    lines = zip(*(cells for _, cells in shown), strict=True)
    return markdown.table([heading for heading, _ in shown], lines, numbers=True)


def section(result: Result) -> str:
    """Title, note, table and machine of a results file."""
    machine = ", ".join(f"{key} {value}" for key, value in result.environment.items() if value)
    parts = (f"### {result.title}", result.note, table(result), machine and f"<sub>{machine}</sub>")
    return "\n\n".join(part for part in parts if part)


def tables(results: Iterable[Result]) -> str:
    """Every results file's section."""
    return "\n\n".join(section(result) for result in results) or "No result is committed yet."


def compared(results: Iterable[Result]) -> Result | None:
    """Results with torch's own training and a budget, cut to what the figure shows.

    The headline's, or else the first.
    """
    for result in sorted(results, key=lambda result: result.title != HEADLINE):
        limited = any(entry.row.budget_bytes for entry in result.entries)
        if limited and any(entry.is_peer for entry in result.entries):
            return Result(result.title, result.note, result.environment, _highlights(result))
    return None


def _highlights(result: Result) -> tuple[Entry, ...]:
    """Peers, keep without a budget, and at each budget too small for it the fastest policy."""
    ran = [entry for entry in result.entries if entry.row.step_s and not entry.row.infeasible]
    peers = [entry for entry in ran if entry.is_peer]
    own = [entry for entry in ran if not entry.is_peer]
    kept = [e for e in own if e.row.policy == KEEP and e.row.budget_bytes is None][:1]
    others = [e for e in own if e.row.policy != KEEP and e.row.budget_bytes]
    roomy = min((e.row.peak_bytes for e in kept if e.row.peak_bytes), default=None)
    budgets = {e.row.budget_bytes for e in others if e.row.budget_bytes}
    fastest = [
        min(
            (e for e in others if e.row.budget_bytes == budget),
            key=lambda entry: entry.row.step_s or 0.0,
        )
        for budget in sorted(budgets, reverse=True)
        if roomy is None or budget < roomy
    ]
    return (*peers, *kept, *fastest)


def opening(result: Result | None) -> str:
    """The figure and what it shows, in Markdown."""
    if result is None:
        return "No result is committed yet."
    path = (RESULTS / FIGURE).relative_to(ROOT)
    picture = f"![Device memory and time of a step: {result.title}]({path})"
    return f"{picture}\n\n{_caption(result)}\n{LEGEND}"


def _caption(result: Result) -> str:
    peers = [entry for entry in result.entries if entry.is_peer]
    peer = min(peers, key=lambda entry: entry.row.step_s or 0.0)
    own = [entry for entry in result.entries if not entry.is_peer]
    parts = [f"{peer.row.policy} takes {_measure(peer)}"]
    if own and own[-1].row.budget_bytes:
        last = own[-1]
        parts.append(
            f"tvdnn trains inside {format_bytes(last.row.budget_bytes)} at "
            f"{_milliseconds('step_s')(last)} ms ({last.row.policy})"
        )
    others = [entry for entry in own if entry.row.policy != "keep"]
    if others and all(entry.values.get("equal") for entry in others):
        parts.append("all blue rows with the same losses and weights, bit for bit")
    gpu = result.environment.get("gpu")
    return f"{result.title}{f', on one {gpu}' if gpu else ''}: " + "; ".join(parts) + "."


def _measure(entry: Entry) -> str:
    return f"{format_bytes(entry.allocated_nbytes)} and {_milliseconds('step_s')(entry)} ms a step"


def figure(result: Result) -> str:
    """The figure of what `compared` found, in SVG."""
    return draw(result.title, [line(entry) for entry in result.entries])


def line(entry: Entry) -> Line:
    """The row as a line of the figure."""
    row, allocated = entry.row, entry.allocated_nbytes or 0
    counted = allocated if entry.is_peer else min(row.peak_bytes or allocated, allocated)
    return Line(row.policy, entry.is_peer, counted, allocated, row.budget_bytes, row.step_s or 0.0)


def fill(readme: str, results: Sequence[Result]) -> str:
    """The README with what stands between its markers made anew."""
    filled = _between(readme, "figure", opening(compared(results)))
    filled = _between(filled, "releases", releases.markdown(RESULTS / "releases"))
    filled = _between(filled, "networks", networks.markdown(NETWORKS))
    filled = _between(filled, "kernels", kernel_rows.markdown(KERNELS))
    return _between(filled, "results", tables(results))


def _between(text: str, mark: str, body: str) -> str:
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    filled, count = pattern.subn(lambda _: f"{begin}\n{body}\n{end}", text)
    if count != 1:
        raise ValueError(f"the text has {count} places between {begin} and {end}; it needs one")
    return filled


def main() -> None:
    """Write the README, the figure, and the table of networks by name."""
    results = read(RESULTS)
    README.write_text(fill(README.read_text(), results))
    shown = compared(results)
    if shown is not None:
        (RESULTS / FIGURE).write_text(figure(shown))
    (NETWORKS / networks.OTHERS_TABLE).write_text(networks.by_name(NETWORKS))
    print(f"{README.name}: {len(results)} results")


if __name__ == "__main__":
    main()
