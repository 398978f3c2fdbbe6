"""`tvdnn doctor`: the GPU, versions, copy rates, pinnable memory and a first step, with cures."""

import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
import typer
from rich.table import Table

from .. import models
from ..engine import Trainer
from ..experiment.data import random_batch
from ..experiment.measure import device_name, present_device
from ..experiment.progress import StageReport
from ..experiment.request import software
from ..report.tables import LOOK
from ..runtime.host_slab import available_nbytes
from ..runtime.known_launches import known_launches
from ..runtime.link import measure_link
from ..runtime.releases import minor, untested_here
from ..units import format_bytes
from .options import JsonFile
from .output import DONE, FAILED, messages, show, stages, write_json

LEAST_CAPABILITY = (8, 0)
LEAST: Final[Mapping[str, tuple[int, int]]] = MappingProxyType({"torch": (2, 11), "triton": (3, 6)})
EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sklearn": "tvdnn train --data digits: pip install 'tvdnn[demo]'",
        "torchvision": "tvdnn train --data FOLDER: pip install torchvision",
    }
)
COMPILERS = ("gcc", "clang", "cc")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
GB = 1e9
# The network whose first step is timed.
SMALL, SMALL_BATCH = "lenet5", 64


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked. `cure` names the fault and its cure, or is None."""

    name: str
    value: str
    cure: str | None = None
    fatal: bool = False


def doctor(json_file: JsonFile = None) -> None:
    """Check this machine: GPU, versions, copy rates and pinnable memory, with cures for faults."""
    with stages(messages(), "doctor") as report:
        report("looking", 0.0)
        findings = (*findings_of_versions(), *_extras(), *_device(), *_host())
        report("looking", 1.0)
        if not any(finding.fatal for finding in findings):
            findings = (*findings, _first_step(report))
    show(findings_table(findings), json_file=json_file)
    write_json([_json(finding) for finding in findings], json_file)
    raise typer.Exit(FAILED if any(finding.fatal for finding in findings) else DONE)


def findings_table(findings: tuple[Finding, ...]) -> Table:
    """All findings, with faults and cures."""
    table = Table(title="this machine", **LOOK)
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


def findings_of_versions() -> Iterator[Finding]:
    """Versions of software, and those that are too old or missing."""
    for name, version in software().items():
        least = LEAST.get(name)
        old = least is not None and (version is None or minor(version) < least)
        cure = f"kernels on a GPU: install {name}>={'.'.join(map(str, least or ()))}"
        if name != "kernels":
            yield Finding(name, version or "none", cure if old else None, fatal=old)
    said = untested_here()
    yield Finding("tested together", "yes" if said is None else "no", said)


def _extras() -> Iterator[Finding]:
    """Optional packages of some commands, and the compiler that Triton needs."""
    for package, needed in EXTRAS.items():
        found = find_spec(package) is not None
        yield Finding(package, "installed" if found else "none", None if found else needed)
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    cure = "kernels on a GPU: install a C compiler (gcc or clang), or name one in CC"
    named = os.environ.get("CC") or compiler
    yield Finding("C compiler", named or "none", None if named else cure)


def _device() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        mend = (
            "install an NVIDIA driver"
            if torch.version.cuda
            else "this torch is built without CUDA: install one that is"
        )
        yield Finding("GPU", "none", f"training on a GPU ({mend}); small networks run on the CPU")
        return
    device = torch.device("cuda")
    capability = torch.cuda.get_device_capability(device)
    yield Finding("GPU", device_name(device))
    old = capability < LEAST_CAPABILITY
    cure = "the kernels: they need compute capability 8.0 (A100, RTX 30) or later" if old else None
    yield Finding("compute capability", ".".join(map(str, capability)), cure, fatal=old)
    free, total = torch.cuda.mem_get_info(device)
    yield Finding("device memory", f"{format_bytes(free)} free of {format_bytes(total)}")
    yield from _copies(device)
    known = known_launches(device_name(device))
    shipped = f"{len(known.samples):,} known" if known.samples else "none known: they are measured"
    yield Finding("seconds of launches", shipped)


def _copies(device: torch.device) -> Iterator[Finding]:
    link = measure_link(device)
    alone = f"{link.out / GB:.1f} GB/s to host, {link.back / GB:.1f} GB/s to device"
    both = f"{link.out_duplex / GB:.1f} and {link.back_duplex / GB:.1f} GB/s"
    yield Finding("copies, one way at a time", alone)
    yield Finding("copies, both ways at once", both)


def _first_step(report: StageReport) -> Finding:
    """Seconds to the end of a small network's first step here, by part."""
    device = present_device(None)
    net, batch = models.by_name(SMALL).to(device.device), SMALL_BATCH
    x, y = random_batch(batch, models.image_shape(SMALL), 10, device.device)
    trainer = Trainer(net, x, slab=device.slab, progress=report)
    trainer.step(x, y)
    parts = trainer.first_step
    trainer.close()
    device.slab.close()
    named = ", ".join(f"{part} {seconds:.1f}" for part, seconds in parts.items())
    return Finding(f"first step of {SMALL}({batch})", f"{sum(parts.values()):.1f} s: {named}")


def _host() -> Iterator[Finding]:
    """Pinnable memory: free memory, the limit of the container, and the limit on locked memory."""
    yield Finding("host memory free", format_bytes(available_nbytes()))
    if CONTAINER_LIMIT.exists() and CONTAINER_LIMIT.read_text().strip() != "max":
        yield Finding("host memory limit", format_bytes(int(CONTAINER_LIMIT.read_text())))
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "no limit" if soft == resource.RLIM_INFINITY else format_bytes(soft)
    yield Finding("lockable memory (ulimit -l)", limit)
