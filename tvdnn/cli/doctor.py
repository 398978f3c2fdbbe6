"""`tvdnn doctor`: the GPU, versions, copy rates and pinnable memory, and what would not work."""

import resource
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import typer
from rich.table import Table

from ..runtime.profiler import measure_link
from ..runtime.slab import available_nbytes
from ..units import format_bytes
from .measuring import device_name
from .options import JsonFile
from .output import DONE, FAILED, messages, show, stages, write_json
from .request import software

LEAST_CAPABILITY = (8, 0)
GB = 1e9


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `cure` says what does not work and what would mend it."""

    name: str
    value: str
    cure: str | None = None
    fatal: bool = False


def doctor(json_file: JsonFile = None) -> None:
    """Look at this machine: GPU, versions, copy rates, pinnable memory, and what would not work."""
    with stages(messages(), "doctor") as report:
        report("looking", 0.0)
        findings = (*_versions(), *_device(), *_host())
        report("looking", 1.0)
    show(findings_table(findings), json_file=json_file)
    write_json([_json(finding) for finding in findings], json_file)
    raise typer.Exit(FAILED if any(finding.fatal for finding in findings) else DONE)


def findings_table(findings: tuple[Finding, ...]) -> Table:
    """What was found, and what would not work and why."""
    table = Table(title="this machine", title_justify="left")
    for heading in ("what", "found", "what would not work"):
        table.add_column(heading)
    for finding in findings:
        style = "red" if finding.fatal else "yellow" if finding.cure else None
        table.add_row(finding.name, finding.value, finding.cure or "", style=style)
    return table


def _json(finding: Finding) -> dict[str, str | bool | None]:
    return {
        "name": finding.name,
        "value": finding.value,
        "cure": finding.cure,
        "fatal": finding.fatal,
    }


def _versions() -> Iterator[Finding]:
    for name, version in software().items():
        if name == "kernels":
            continue
        cure = None
        if name == "triton" and version is None:
            cure = "the kernels: install triton>=3.6 (Linux)"
        yield Finding(name, version or "none", cure)


def _device() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding("GPU", "none", "training on a GPU; plans are simulated, networks run on CPU")
        return
    device = torch.device("cuda")
    capability = torch.cuda.get_device_capability(device)
    yield Finding("GPU", device_name(device))
    old = capability < LEAST_CAPABILITY
    cure = "the Triton kernels: they need compute capability 8.0 or later" if old else None
    yield Finding("compute capability", ".".join(map(str, capability)), cure, fatal=old)
    free, total = torch.cuda.mem_get_info(device)
    yield Finding("device memory", f"{format_bytes(free)} free of {format_bytes(total)}")
    yield from _copies(device)


def _copies(device: torch.device) -> Iterator[Finding]:
    link = measure_link(device)
    alone = f"{link.to_host / GB:.1f} GB/s to host, {link.to_device / GB:.1f} GB/s to device"
    both = f"{link.to_host_duplex / GB:.1f} and {link.to_device_duplex / GB:.1f} GB/s"
    yield Finding("copies, one way at a time", alone)
    yield Finding("copies, both ways at once", both)


def _host() -> Iterator[Finding]:
    yield Finding("host memory free", format_bytes(available_nbytes()))
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "no limit" if soft == resource.RLIM_INFINITY else format_bytes(soft)
    yield Finding("lockable memory (ulimit -l)", limit)
