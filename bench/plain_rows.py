"""Results of other forms than whole steps, as Markdown: a table a file."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.entries import UNKNOWN, machine
from bench.gist_memory import PAPERS
from bench.markdown import at, table
from tvdnn.units import KIB, format_bytes

Values = Mapping[str, Any]
Text = Callable[[Values], str]
NONE = "-"
MB = 10**6


@dataclass(frozen=True, slots=True)
class PlainTable:
    """A table of one file of bench/results."""

    title: str
    file: str
    note: str
    columns: tuple[tuple[str, Text], ...]
    # The rows to show, of all rows of the file.
    rows: Callable[[Sequence[Values]], Sequence[Values]] = lambda rows: rows


def markdown(folder: Path, shown: PlainTable) -> str:
    """The table under its title, with machine and commit."""
    document = json.loads((folder / shown.file).read_text())
    environment = document["environment"]
    commits = dict.fromkeys(
        row.get("commit") or environment.get("commit") for row in document["rows"]
    )
    body = [[text(row) for _, text in shown.columns] for row in shown.rows(document["rows"])]
    return "\n\n".join(
        (
            f"### {shown.title}",
            shown.note,
            f"<sub>{machine(environment)}</sub>",
            f"Measured {at([each or UNKNOWN for each in commits])}:",
            table([heading for heading, _ in shown.columns], body, numbers=True),
        )
    )


def _value(key: str, form: str = "") -> Text:
    return lambda row: NONE if row.get(key) is None else f"{row[key]:{form}}"


def _nbytes(key: str) -> Text:
    return lambda row: format_bytes(row[key])


def _milliseconds(key: str) -> Text:
    return lambda row: f"{row[key] * 1e3:.1f}"


def _with_range(median_s: float, every_s: Sequence[float]) -> str:
    least, most = (1e3 * each for each in (min(every_s), max(every_s)))
    return f"{1e3 * median_s:.1f} ({least:.1f} to {most:.1f})"


def _network(row: Values) -> str:
    return f"{row['net']}({row['batch']})"


def _rates(rows: Sequence[Values]) -> Sequence[Values]:
    return [row for row in rows if row["measured"] == "rate"]


def _by_network_and_type(rows: Sequence[Values]) -> Sequence[Values]:
    """A row a network and type: each policy's bytes of the arena, and its ratio.

    Behind each type comes the mean of the ratios of the paper's five networks.
    """
    found = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        mine = [row for row in rows if row["dtype"] == dtype]
        for net in dict.fromkeys(row["net"] for row in mine):
            of_net = [row for row in mine if row["net"] == net]
            cells = {_planned_as(row): _bytes_and_ratio(row) for row in of_net}
            found.append({**of_net[0], "network": _network(of_net[0]), **cells})
        ratios: dict[str, list[float]] = {}
        for row in (row for row in mine if row["net"] in PAPERS):
            ratios.setdefault(_planned_as(row), []).append(row["ratio"])
        means = {key: f"{sum(each) / len(each):.2f}x" for key, each in ratios.items()}
        found.append({"network": "mean of the first five", "dtype": dtype, **means})
    return found


def _planned_as(row: Values) -> str:
    return f"{row['policy']}, {'fused' if row['fused'] else 'single'}"


def _bytes_and_ratio(row: Values) -> str:
    """Megabytes of the arena and their ratio; the seconds beside keep's of the same graph."""
    more = row["predicted_s"] / row["keeps_s"] - 1.0
    return f"{row['arena_bytes'] / MB:,.0f} ({row['ratio']:.2f}x, {more:+.1%})"


def _parameters_and_state(row: Values) -> str:
    both = [row.get("parameter_bytes"), row.get("state_bytes")]
    return NONE if None in both else f"{sum(both) / MB:,.0f}"


def _errors_by_network_and_type(rows: Sequence[Values]) -> Sequence[Values]:
    """A row a network and type: each codec's largest error, and the parameter that has it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        cell = f"{row['largest_error']:.1e} ({row['of']})"
        found.setdefault((row["net"], row["dtype"]), {**row})[row["policy"]] = cell
    return [*found.values()]


def _by_architecture(rows: Sequence[Values]) -> Sequence[Values]:
    """A row an architecture: its kernels and variants, and the most that any takes."""
    most = ("shared_nbytes", "registers", "spilled_nbytes")
    found = []
    for arch in sorted({row["arch"] for row in rows}):
        mine = [row for row in rows if row["arch"] == arch]
        summed = {"arch": arch, "kernels": len(mine), "variants": sum(r["variants"] for r in mine)}
        found.append({**summed, **{key: max(row[key] for row in mine) for key in most}})
    return found


LARGE_PLANS = PlainTable(
    "Plans of full-size networks",
    "plans/large.json",
    "Planned for an H200 by its data sheet: nothing was run. CPU seconds are of one core.",
    (
        ("network", _network),
        ("policy", _value("policy")),
        ("budget", _nbytes("budget_bytes")),
        ("planned peak", _nbytes("planned_peak_bytes")),
        ("keep's peak", _nbytes("kept_peak_bytes")),
        ("predicted ms", _milliseconds("predicted_s")),
        ("keep's ms", _milliseconds("kept_s")),
        ("planning s", _value("plan_cpu_s", ".1f")),
        ("checking s", _value("check_cpu_s", ".2f")),
    ),
)
GIST_MEMORY = PlainTable(
    "Memory of Gist's networks on single layers",
    "plans/gist_memory.json",
    "MB of the arena at its peak: stored maps and all else but parameters and optimizer state, as "
    "Gist counts. In brackets the ratio to keep, and the predicted time beside it. Planned for an "
    "H200: nothing was run but a step that counts zeros. SSDC and bitmap codes have room for these "
    "densities, of random weights.",
    (
        ("network", _value("network")),
        ("type", _value("dtype")),
        ("parameters and state", _parameters_and_state),
        ("keep", _value("keep, single")),
        ("gist-lossless", _value("gist-lossless, single")),
        ("ssdc", _value("gist-lossless:ssdc, single")),
        ("bitmap", _value("gist-lossless:bitmap, single")),
        ("tf32", _value("gist-lossless:tf32, single")),
    ),
    _by_network_and_type,
)
GIST_MEMORY_FUSED = replace(
    GIST_MEMORY,
    title="Memory of Gist's networks on fused ops",
    note="The same over fused ops. The ratio is to keep on single layers, the time beside keep on "
    "fused ops.",
    columns=(
        *GIST_MEMORY.columns[:3],
        ("keep", _value("keep, fused")),
        ("gist-lossless:fused", _value("gist-lossless, fused")),
        ("ssdc", _value("gist-lossless:ssdc, fused")),
        ("bitmap", _value("gist-lossless:bitmap, fused")),
        ("tf32", _value("gist-lossless:tf32, fused")),
    ),
)
LOSSY = ("fp16", "fp10", "fp8")
GIST_LOSSY = replace(
    GIST_MEMORY,
    title="Memory of Gist's networks with rounded maps",
    note="MB under gist-lossy, with the ratio to keep on single layers, and the time beside keep "
    "on the same graph. Losses are exact, gradients are not.",
    columns=(
        *GIST_MEMORY.columns[:2],
        ("keep", _value("keep, single")),
        *((name, _value(f"gist-lossy:{name}, single")) for name in LOSSY),
        *((f"fused, {name}", _value(f"gist-lossy:{name}, fused")) for name in LOSSY),
    ),
)
LOSSY_ERRORS = PlainTable(
    "Errors of gradients from rounded maps",
    "plans/lossy_errors.json",
    "The largest relative root of the mean square error of any parameter's gradient, and whose it "
    "is: one step at random weights and random images on a CPU, networks with an eighth of their "
    "channels. The losses are those of keep to the bit.",
    (
        ("network", _network),
        ("type", _value("dtype")),
        ("rounded maps", _value("rounded_maps")),
        *((name, _value(f"gist-lossy:{name}")) for name in LOSSY),
    ),
    _errors_by_network_and_type,
)
FRONTIER = "plans/frontier_h100.json"


def rivals(folder: Path) -> PlainTable:
    """torch's ways, each beside the fastest of auto's and keep's rows in no more memory."""
    own = json.loads((folder / FRONTIER).read_text())["rows"]

    def beside(rows: Sequence[Values]) -> Sequence[Values]:
        nets = list(dict.fromkeys(row["net"] for row in rows))
        ordered = sorted(rows, key=lambda row: (nets.index(row["net"]), row.get("step_s") or 1e9))
        return [{**row, **_fastest_inside(own, row)} for row in ordered]

    return PlainTable(
        "torch's ways to less memory beside auto",
        "plans/rivals_h100.json",
        "Memory is the peak of torch's counter less images and labels; with CUDA graphs, what "
        "torch has reserved. Beside it stands the fastest measured plan of ours whose planned peak "
        "is at most that memory: `auto`, or `keep`. Ours were measured on other days and at other "
        "commits, on GPUs of the same kind. Where torch's times are blank, its first two steps "
        "took over 180 s while up to six processes compiled side by side.",
        (
            ("network", _network),
            ("torch's way", _value("way")),
            ("ms", _blank_or(_milliseconds, "step_s")),
            ("memory", _blank_or(_nbytes, "measured_peak_bytes")),
            ("first steps s", _value("first_steps_s", ".0f")),
            ("our policy", _value("own_policy")),
            ("our ms", _blank_or(_milliseconds, "own_s")),
            ("our memory", _blank_or(_nbytes, "own_bytes")),
        ),
        beside,
    )


def _blank_or(form: Callable[[str], Text], key: str) -> Text:
    return lambda row: NONE if row.get(key) is None else form(key)(row)


def _fastest_inside(own: Sequence[Values], row: Values) -> Values:
    limit = row.get("measured_peak_bytes") or 0
    fits = [
        each
        for each in own
        if each["net"] == row["net"] and each.get("step_s") and each["planned_peak_bytes"] <= limit
    ]
    if not fits:
        return {}
    best = min(fits, key=lambda each: each["step_s"])
    return {
        "own_policy": best["policy"],
        "own_s": best["step_s"],
        "own_bytes": best["planned_peak_bytes"],
    }


REPLANS = PlainTable(
    "Steps while a plan is made again",
    "plans/replan.json",
    "The first plan is made by costs whose link is too fast by the factor `skew`.",
    (
        ("network", _network),
        ("budget", _nbytes("budget_bytes")),
        ("skew", _value("skew")),
        ("median step ms", _milliseconds("median_s")),
        ("slowest beside planning ms", _milliseconds("worst_s")),
        ("step that takes it over ms", _milliseconds("swap_s")),
        ("median after ms", _milliseconds("after_s")),
        ("planning s", _value("planning_s", ".1f")),
        ("same bits as keep", lambda row: {True: "yes", False: "NO"}[row["equal"]]),
    ),
)
COPIES = PlainTable(
    "Copies between device and host",
    "copies/h200.json",
    "Rates in GB/s, each way alone and both at once.",
    (
        ("by", _value("way")),
        ("MiB", _value("mib")),
        ("to host", _value("to_host")),
        ("to device", _value("to_device")),
        ("both", _value("both")),
    ),
    _rates,
)
TIERS = PlainTable(
    "Steps with a file behind little host memory",
    "tiers/h100.json",
    "Each plan by copies to the host, and with little pinned memory: most goes on to a file on the "
    "machine's disk. Predicted by rates that the profiler measured on that disk before, and by "
    "those of one measured step. The disk of a virtual machine varies: the fastest and the slowest "
    "step stand beside the median. Cores are those that the process keeps busy.",
    (
        ("network", _network),
        ("policy", _value("policy")),
        ("on the host", _nbytes("slab_bytes")),
        ("in the file", _nbytes("file_bytes")),
        ("ms", lambda row: _with_range(row["step_s"], row["steps_s"])),
        ("predicted ms", _milliseconds("predicted_s")),
        ("by one step ms", _milliseconds("calibrated_s")),
        ("busy cores", _value("busy_cores", ".1f")),
        ("same bits as keep", lambda row: {True: "yes", False: "NO", None: NONE}[row["equal"]]),
    ),
)
ENCODE_TO_HOST = PlainTable(
    "Codes on their way to the host beside convolutions",
    "codecs/to_host_h100.json",
    "By the engine's way an encoder among the convolutions leaves a code that a copy engine takes. "
    "By the straight way a kernel of few programs stores the code to pinned memory itself. Beside "
    "run persistent layers of VGG-16 in bf16, with `fewer` programs each; they take "
    "`slowdown` times as long while codes leave throughout. The work is the same for all: the "
    "convolutions, and as many codes as engines take meanwhile. Single times of work vary: the "
    "8.1 ms of fp8 by the engine were 6.4 ms in a run before.",
    (
        ("codec", _value("codec")),
        ("way", _value("way")),
        ("programs", lambda row: str(row["programs"] or "all")),
        ("fewer", _value("left")),
        ("copies to the device", lambda row: "beside" if row["duplex"] else "none"),
        ("GB/s", _value("gbytes_per_s", ".1f")),
        ("share of engines'", _value("link_share", ".0%")),
        ("slowdown", _value("slowdown", ".2f")),
        ("work ms", _value("work_ms", ".2f")),
    ),
)
COMPILED = PlainTable(
    "Compiled without a GPU",
    "compiled/triton-3.9.json",
    "The most that any variant takes: shared memory of a program, registers of a thread, and bytes "
    "of registers spilled.",
    (
        ("compute capability", lambda row: f"{row['arch'] // 10}.{row['arch'] % 10}"),
        ("kernels", _value("kernels")),
        ("variants", _value("variants")),
        ("shared memory", lambda row: f"{row['shared_nbytes'] / KIB:.0f} KiB"),
        ("registers", _value("registers")),
        ("spilled bytes", _value("spilled_nbytes")),
    ),
    _by_architecture,
)
