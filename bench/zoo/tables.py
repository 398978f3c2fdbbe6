"""The zoo's rows as Markdown: a page's tables, and the README's table of ten."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from bench.entries import machine
from bench.markdown import at, table
from bench.plain_rows import PlainTable
from bench.zoo.networks import network_named
from bench.zoo.ratios import means_of, ratios_of
from bench.zoo.rows import (
    AUTO,
    COMPILED,
    EAGER,
    HALF,
    KEEP,
    TORCH,
    TVDNN,
    VIRTUALIZED,
    Row,
    compiled_nbytes,
    fastest_compiled,
    found,
    listed,
)
from tvdnn.units import format_bytes

NONE: Final = "-"
TEN: Final = (
    "vgg16", "resnet50", "resnext50_32x4d", "densenet121", "googlenet", "inception_v3",
    "convnext_tiny", "efficientnet_b0", "mobilenet_v3_large", "fcn_resnet50",
)  # fmt: skip
DTYPES: Final = ("bf16", "tf32")
GPUS: Final = ("h200", "h100")  # the README shows the first of which all ten are there
MEAN: Final = "geometric mean"
NOTE: Final = """\
torch's step is that of eager and the shorter of torch.compile's two, by default and with CUDA
graphs; torch.compile's memory is the smaller of the two. Ours is `Trainer` under `auto` without a
budget, unless a column says otherwise. Memory is the peak without images and labels. `in half` is
`auto` in half of torch.compile's memory."""
FIRST: Final = """\
Seconds from the call to the end of the first step, with empty caches. `keep` stores every map;
`virtualize` is the same network in a loop of torch's own."""
TOLD: Final = """\
Device memory and time of a training step on one {gpu}, in bf16, without images and labels. `auto`
has no budget, or half of torch.compile's memory. `-` means not measured."""


PLANS: Final = PlainTable(
    "The zoo's networks, planned",
    "plans/zoo.json",
    "Simulated for an H100: nothing was run. Launches take as long as they were measured to take "
    "on one; a share is estimated by the rates of their kernels. `auto` has no budget, or half of "
    "the memory that torch.compile takes there, where that was measured. A network that tvdnn "
    "refuses has the reason beside its name. CPU seconds are of one core: of tracing, and of "
    "planning in half of the memory.",
    (
        ("network", lambda row: ", ".join([named(row["net"]), *_refused(row)])),
        ("`keep`", lambda row: _nbytes(row.get("keep_peak_bytes"))),
        ("`auto`", lambda row: _nbytes(row.get("auto_peak_bytes"))),
        ("`auto` ms", lambda row: _planned_ms(row, "auto")),
        ("in half ms", lambda row: _planned_ms(row, "half")),
        ("over `auto`", lambda row: _times(_planned_ratio(row))),
        ("estimated", lambda row: _share(row.get("estimated_share"))),
        ("tracing s", lambda row: _seconds(row.get("trace_cpu_s"))),
        ("planning s", lambda row: _seconds(row.get("half_plan_cpu_s"))),
    ),
)

FIRST_STEPS: Final = PlainTable(
    "First steps with empty caches",
    "first_steps/h200.json",
    "Seconds from `Trainer` to the end of its first step in bf16, without a budget, on 16 cores; "
    "`other` has the launches that are listed for compilation. Processes differ, as ResNet-50's "
    "three do.",
    (
        ("network", lambda row: named(row["net"])),
        ("all", lambda row: f"{row['seconds']:.1f}"),
        ("tracing", lambda row: _part(row, "tracing")),
        ("planning", lambda row: _part(row, "planning")),
        ("compiling", lambda row: _part(row, "compiling")),
        ("capturing", lambda row: _part(row, "capturing")),
        ("other", lambda row: _part(row, "other")),
    ),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows of one GPU and type."""

    gpu: str
    dtype: str
    torchs: Sequence[Row]
    tvdnns: Sequence[Row]

    @property
    def nets(self) -> list[str]:
        return listed([*self.torchs, *self.tvdnns])

    def torch(self, net: str, way: str) -> Row | None:
        return found(self.torchs, net, way, self.dtype)

    def tvdnn(self, net: str, way: str) -> Row | None:
        return found(self.tvdnns, net, way, self.dtype)


def markdown(folder: Path) -> str:
    """The tables of every GPU and type; no text where there are no rows."""
    parts = [part for each in _measured(folder) for part in _tables(each)]
    return "\n\n".join(parts)


def ten_networks(folder: Path) -> str | None:
    """The README's table, where the rows of all ten networks are there."""
    for each in sorted(_measured(folder), key=lambda each: GPUS.index(each.gpu)):
        if each.dtype == DTYPES[0] and set(TEN) <= {row["net"] for row in each.tvdnns}:
            return _ten(each)
    return None


def _measured(folder: Path) -> Iterator[Measured]:
    for path in sorted(folder.glob(f"{TORCH}_*.json")):
        gpu = path.stem.removeprefix(f"{TORCH}_")
        torchs, tvdnns = (_read(folder / f"{name}_{gpu}.json") for name in (TORCH, TVDNN))
        for dtype in DTYPES:
            mine = [[r for r in rows if r["dtype"] == dtype] for rows in (torchs, tvdnns)]
            if any(mine):
                yield Measured(gpu, dtype, *mine)


def _read(path: Path) -> list[Row]:
    return json.loads(path.read_text())["rows"] if path.exists() else []


def _tables(of: Measured) -> Iterator[str]:
    yield f"### The zoo in {of.dtype} on an {of.gpu.upper()}"
    yield NOTE
    rows = [*of.torchs, *of.tvdnns]
    machines = dict.fromkeys(machine(row["environment"]) for row in rows)
    yield "\n".join(f"<sub>{each}</sub>" for each in machines)
    yield f"Measured {at(_commits(rows))}:"
    yield _steps(of)
    yield FIRST
    yield _first_steps(of)


def _commits(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["environment"]["commit"] for row in rows))


def _steps(of: Measured) -> str:
    head = (
        "network", "eager ms", "compile ms", "ms", "over compile", "over eager",
        "compile's memory", "memory, over compile", "in half, over `auto`",
    )  # fmt: skip
    each = {net: ratios_of(of.torchs, of.tvdnns, net, of.dtype) for net in of.nets}
    means = means_of(list(each.values()))
    lines = []
    for net, ratios in each.items():
        compiled, auto, half = fastest_compiled(of.torchs, net, of.dtype), *_own(of, net)
        memory = _memory(auto)
        lines.append(
            (
                named(net),
                _ms(of.torch(net, EAGER)),
                _ms(compiled or of.torch(net, COMPILED)),
                _ms(auto),
                _times(ratios.time_over_compiled),
                _times(ratios.time_over_eager),
                _nbytes(compiled_nbytes(of.torchs, net, of.dtype)),
                f"{memory}, {_times(ratios.memory_over_compiled)}",
                f"{_ms(half)}, {_times(ratios.half_over_auto)}",
            )
        )
    over = [_times(value) for value in astuple(means)]
    lines.append((MEAN, "", "", "", *over[:2], "", *over[2:4]))
    return table(head, lines, numbers=True)


def _own(of: Measured, net: str) -> tuple[Row | None, Row | None]:
    return of.tvdnn(net, AUTO), of.tvdnn(net, HALF)


def _part(row: Row, name: str) -> str:
    return f"{row['parts'][name]:.2f}"


def _first_steps(of: Measured) -> str:
    head = (
        "network", "compile's first s", "first s", "predicted / measured", "planned peak",
        "`keep` ms", "`keep`'s memory", "`virtualize` ms", "over `Trainer`",
    )  # fmt: skip
    each = {net: ratios_of(of.torchs, of.tvdnns, net, of.dtype) for net in of.nets}
    lines = []
    for net, ratios in each.items():
        auto, keep = of.tvdnn(net, AUTO), of.tvdnn(net, KEEP)
        lines.append(
            (
                named(net),
                _first(of.torch(net, COMPILED)),
                _first(auto),
                _predicted(auto),
                _nbytes(auto and auto.get("planned_peak_bytes")),
                _ms(keep),
                _memory(keep),
                _ms(of.tvdnn(net, VIRTUALIZED)),
                _times(ratios.virtualized_over_auto),
            )
        )
    mean = means_of(list(each.values())).virtualized_over_auto
    lines.append((MEAN, *[""] * 7, _times(mean)))
    return table(head, lines, numbers=True)


def _ten(of: Measured) -> str:
    head = ("network", "torch eager", "torch.compile", "`auto`", "`auto` in half", "commit")
    lines = []
    for net in TEN:
        auto, half = _own(of, net)
        compiled = fastest_compiled(of.torchs, net, of.dtype)
        nbytes = _nbytes(compiled_nbytes(of.torchs, net, of.dtype))
        compiles = NONE if compiled is None else f"{nbytes}, {_ms(compiled)} ms"
        cells = (_both(of.torch(net, EAGER)), compiles, _both(auto))
        commits = ", ".join(_commits([row for row in (auto, half) if row is not None]))
        lines.append((named(net), *cells, _both(half), commits))
    gpu = of.tvdnns[-1]["environment"]["gpu"]
    return f"{TOLD.format(gpu=gpu)}\n\n{table(head, lines, numbers=True)}"


def named(net: str) -> str:
    """A network with its batch."""
    return f"{net}({network_named(net).batch})"


def _both(row: Row | None) -> str:
    return NONE if row is None else f"{_memory(row)}, {_ms(row)} ms"


def _ms(row: Row | None) -> str:
    """The milliseconds of a step, or why there are none."""
    if row is None:
        return NONE
    return f"{1e3 * row['step_s']:.1f}" if row.get("step_s") else _why(row)


def _why(row: Row) -> str:
    """The first words of an error."""
    return row.get("error", NONE).split(":")[0].replace("|", "/")[:40]


def _memory(row: Row | None) -> str:
    return _nbytes(row and row.get("measured_peak_bytes"))


def _nbytes(value: int | None) -> str:
    return NONE if value is None else format_bytes(value)


def _first(row: Row | None) -> str:
    if row is None:
        return NONE
    return f"{row['first_step_s']:.1f}" if "first_step_s" in row else _why(row)


def _predicted(row: Row | None) -> str:
    if row is None or not row.get("step_s"):
        return NONE
    return f"{row['predicted_s'] / row['step_s']:.2f}"


def _times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}x"


def _refused(row: Row) -> list[str]:
    return [row["refused"].replace("|", "/").replace("\n", " ")] if "refused" in row else []


def _planned_ms(row: Row, how: str) -> str:
    return f"{1e3 * row[f'{how}_s']:.1f}" if f"{how}_s" in row else NONE


def _planned_ratio(row: Row) -> float | None:
    return row["half_s"] / row["auto_s"] if "half_s" in row else None


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"
