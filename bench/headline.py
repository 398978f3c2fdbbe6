"""What the README shows of the results: a figure of one network, and a table of ten."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import markdown
from bench.columns import milliseconds
from bench.entries import KEEP, Entry, Result
from bench.figure import Line, draw
from tvdnn.report.tables import NONE
from tvdnn.units import format_bytes

HEADLINE = "VGG-16, batch 256, bf16"  # the title of the results that the figure shows
COMPARED = "compare_"  # the names of files with torch's own training begin with this word
EAGER, COMPILED = "torch eager", "torch.compile"
TEN = (
    "VGG-16", "ResNet-50", "ResNet-152", "DenseNet-121", "GoogLeNet", "Inception-v3",
    "ConvNeXt-T", "EfficientNet-B0", "FCN-ResNet-50", "U-Net",
)  # fmt: skip
TYPE = "bf16"
TOLD = """\
Device memory and time of a training step on one NVIDIA H200, in bf16. Memory is torch's own count,
with the caller's inputs and outputs. `-` means not measured."""
LEGEND = """\
Grey is torch, blue is tvdnn, a red mark is the budget. The pale end is the caller's inputs and
outputs. Both sides are counted by `torch.cuda.max_memory_allocated`."""


def compared(results: Iterable[Result]) -> Result | None:
    """Results with torch's own training and a budget, cut to what the figure shows.

    The headline's, or else the first.
    """
    for result in sorted(results, key=lambda result: result.title != HEADLINE):
        limited = any(entry.row.budget_bytes for entry in result.entries)
        if limited and any(entry.is_peer for entry in result.entries):
            shown = _highlights(result)
            return Result(result.name, result.title, result.note, result.environment, shown)
    return None


def _highlights(result: Result) -> tuple[Entry, ...]:
    """Peers, keep without a budget, and at each budget too small for it the fastest policy."""
    ran = [entry for entry in result.entries if entry.ran]
    peers = [entry for entry in ran if entry.is_peer]
    own = [entry for entry in ran if not entry.is_peer]
    kept = [e for e in own if e.row.policy == KEEP and e.row.budget_bytes is None][:1]
    others = [e for e in own if e.row.policy != KEEP and e.row.budget_bytes]
    roomy = min((e.row.peak_bytes for e in kept if e.row.peak_bytes), default=None)
    budgets = {e.row.budget_bytes for e in others if e.row.budget_bytes}
    fastest = [
        min((e for e in others if e.row.budget_bytes == budget), key=_step_s)
        for budget in sorted(budgets, reverse=True)
        if roomy is None or budget < roomy
    ]
    return (*peers, *kept, *fastest)


def _step_s(entry: Entry) -> float:
    return entry.row.step_s or 0.0


def opening(result: Result | None, path: Path) -> str:
    """The figure at `path` and what it shows, in Markdown."""
    if result is None:
        return "No result is committed yet."
    picture = f"![Device memory and time of a step: {result.title}]({path})"
    return f"{picture}\n\n{_caption(result)}\n{LEGEND}"


def _caption(result: Result) -> str:
    peer = min((entry for entry in result.entries if entry.is_peer), key=_step_s)
    own = [entry for entry in result.entries if not entry.is_peer]
    parts = [f"{peer.row.policy} takes {_measure(peer)} a step."]
    if own and own[-1].row.budget_bytes:
        last = own[-1]
        parts.append(
            f"tvdnn ({last.row.policy}) trains inside {format_bytes(last.row.budget_bytes)} "
            f"at {_milliseconds(last)}."
        )
    others = [entry for entry in own if entry.row.policy != KEEP]
    if others and all(entry.values.get("equal") for entry in others):
        parts.append("All blue rows have the same losses and weights, bit for bit.")
    gpu = result.environment.get("gpu")
    place = f" on one {gpu}" if gpu else ""
    return f"{result.title}{place}, {markdown.at(result.commits)}: {' '.join(parts)}"


def _measure(entry: Entry) -> str:
    return f"{format_bytes(entry.allocated_nbytes)} and {_milliseconds(entry)}"


def _milliseconds(entry: Entry) -> str:
    return f"{milliseconds('step_s')(entry)} ms"


def figure(result: Result) -> str:
    """The figure of what `compared` found, in SVG."""
    return draw(result.title, [line(entry) for entry in result.entries])


def line(entry: Entry) -> Line:
    """The row as a line of the figure."""
    row, allocated = entry.row, entry.allocated_nbytes or 0
    counted = allocated if entry.is_peer else min(row.peak_bytes or allocated, allocated)
    return Line(row.policy, entry.is_peer, counted, allocated, row.budget_bytes, _step_s(entry))


def ten_networks(results: Iterable[Result]) -> str:
    """Memory and time of a step of ten networks, beside torch eager and torch.compile.

    `bench/zoo/tables.py` shows the same of the zoo's rows, once they are there.
    """
    files = [result for result in results if result.name.startswith(COMPARED)]
    found = [_beside_eager(name, files) for name in TEN]
    rows = [_network_row(result) for result in found if result is not None]
    head = ("network", EAGER, COMPILED, "`keep`", "`auto` in less", "commit")
    return f"{TOLD}\n\n{markdown.table(head, rows, numbers=True)}"


def _beside_eager(name: str, results: Sequence[Result]) -> Result | None:
    """The file of this network and the table's type with torch eager's row."""
    for result in results:
        network, _, kind = result.title.partition(", ")
        if network == name and kind.endswith(TYPE) and _of(EAGER, result):
            return result
    return None


def _network_row(result: Result) -> Sequence[str]:
    policies = (EAGER, COMPILED, KEEP, "auto")
    cells = (_cell(_of(policy, result)) for policy in policies)
    return (result.title.removesuffix(f", {TYPE}"), *cells, ", ".join(result.commits))


def _of(policy: str, result: Result) -> Entry | None:
    return next((e for e in result.entries if e.row.policy == policy and e.ran), None)


def _cell(entry: Entry | None) -> str:
    return NONE if entry is None else _measure(entry).replace(" and ", ", ")
