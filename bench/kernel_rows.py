"""Measured kernels beside their peers: rows, sums over a network, and their Markdown."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases.conv.depthwise_networks import NETWORKS
from bench.entries import UNKNOWN, machine
from bench.markdown import at, table

SETS = {
    "vgg16": "VGG-16's convolutions, N = 256",
    "resnet50": "ResNet-50's convolutions, N = 256",
    "resnext50": "ResNeXt-50 32x4d's convolutions in groups, N = 256",
    "resnext101": "ResNeXt-101 32x8d's convolutions in groups, N = 256",
    "regnet_y_400mf": "RegNetY-400MF's convolutions in groups, N = 256",
    "regnet_y_3_2gf": "RegNetY-3.2GF's convolutions in groups, N = 256",
    "regnet_y_16gf": "RegNetY-16GF's convolutions in groups, N = 256",
    "few channels": "Other networks' convolutions of few channels, N = 256",
    "moments": "ResNet-50's convolutions that leave moments, N = 256",
    "fused": "VGG-16's convolutions, fused, N = 256",
    "linear": "VGG-16's linear layers, N = 256",
    **{
        f"{name}, depthwise{', channels first' if first else ''}": (
            f"{each.title}({each.samples})'s depthwise convolutions,"
            f" torch's channels {'first' if first else 'last'}"
        )
        for name, each in NETWORKS.items()
        for first in (False, True)
    },
    "elementwise": "Elementwise, over 100 MB",
    "codecs": "Codecs, on sections of maps of 256 MiB",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on one shape, measured; rates are of what its arithmetic and operands need."""

    set: str
    kernel: str
    shape: str
    samples: int
    count: int
    dtype: str
    ms: float
    peer: str
    peer_ms: float
    tflops: float
    gbytes_per_s: float
    roofline_share: float
    error: float
    peer_error: float | None
    config: str

    @property
    def ratio(self) -> float:
        """Our time over the peer's."""
        return self.ms / self.peer_ms


@dataclass(frozen=True, slots=True)
class Sum:
    """A network's layers together: of one kernel, or of all."""

    set: str
    dtype: str
    kernel: str
    peer: str
    ms: float
    peer_ms: float
    worst: Row


def sums(rows: Sequence[Row]) -> Iterator[Sum]:
    """Sums by kernel and over all kernels, for every set that has products."""
    for name, dtype in dict.fromkeys((row.set, row.dtype) for row in rows if row.tflops):
        mine = [row for row in rows if (row.set, row.dtype) == (name, dtype)]
        kernels = [*dict.fromkeys(row.kernel for row in mine), "all"]
        for kernel in kernels:
            summed = [row for row in mine if kernel in ("all", row.kernel)]
            ms = sum(row.count * row.ms for row in summed)
            peer_ms = sum(row.count * row.peer_ms for row in summed)
            worst = max(summed, key=lambda row: row.ratio)
            yield Sum(name, dtype, kernel, worst.peer, ms, peer_ms, worst)


def read(folder: Path) -> list[tuple[Mapping[str, Any], list[Row]]]:
    """Environment and rows of each file, in the order of their names."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [(each["environment"], [Row(**row) for row in each["rows"]]) for each in documents]


def markdown(folder: Path) -> str:
    """The sums over networks of each file, then every row."""
    parts = [_section(environment, rows) for environment, rows in read(folder)]
    return "\n\n".join(parts) or "No kernel is measured yet."


def _section(environment: Mapping[str, Any], rows: Sequence[Row]) -> str:
    types = ", ".join(dict.fromkeys(row.dtype for row in rows))
    when = at([environment.get("commit") or UNKNOWN])
    head = (f"## In {types}", f"<sub>{machine(environment)}</sub>")
    return "\n\n".join(
        (*head, f"Sums over networks, {when}:", _sums_table(rows), *_rows_tables(rows, when))
    )


def _sums_table(rows: Sequence[Row]) -> str:
    cells = [
        (
            SETS[each.set], each.kernel, f"{each.ms:.2f}", f"{each.peer} {each.peer_ms:.2f}",
            f"{each.ms / each.peer_ms:.2f}", f"{each.worst.ratio:.2f} ({each.worst.shape})",
        )
        for each in sums(rows)
    ]  # fmt: skip
    heads = ("of", "kernel", "ms", "peer's ms", "ratio", "worst ratio")
    return table(heads, cells, numbers=True)


def _rows_tables(rows: Sequence[Row], when: str) -> Iterator[str]:
    """A title and a table for each set and type."""
    heads = ("kernel", "shape", "ms", "rate", "of roofline", "of the peer's time", "error")
    for name, dtype in dict.fromkeys((row.set, row.dtype) for row in rows):
        mine = [row for row in rows if (row.set, row.dtype) == (name, dtype)]
        yield f"### {SETS[name]}, {dtype}"
        yield f"Every kernel, {when}:"
        yield table(heads, [_cells(row) for row in mine], numbers=True)


def _cells(row: Row) -> tuple[str, ...]:
    times = f"{row.count} x " if row.count > 1 else ""
    peer_error = "-" if row.peer_error is None else f"{row.peer_error:.1e}"
    return (
        row.kernel, times + row.shape, f"{row.ms:.3f}", *_rates(row),
        f"{row.ratio:.2f} ({row.peer})", f"{row.error:.1e} / {peer_error}",
    )  # fmt: skip


def _rates(row: Row) -> tuple[str, str]:
    """The rate and its share of the roofline. Tests see that no share is above 105%."""
    rate = f"{row.tflops:.0f} TFLOP/s" if row.tflops else f"{row.gbytes_per_s:.0f} GB/s"
    return rate, f"{row.roofline_share:.0%}"
