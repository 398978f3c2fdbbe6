"""The CPU cores that this process may use."""

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/proc/self/cgroup")
MOUNT: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP, mount: Path = MOUNT) -> int:
    """The number of cores of this process, within the CPU quota of its control groups; at least 1.

    Processes that torchrun starts side by side on one host share the cores evenly.
    """
    cores = float(_allowed())
    cores = min([cores, *_quotas(cgroup, mount)])
    neighbours = os.environ.get("LOCAL_WORLD_SIZE", "")
    share = int(neighbours) if neighbours.isdecimal() else 1
    return max(1, ceil(cores) // max(1, share))


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(cgroup: Path, mount: Path) -> Iterator[float]:
    """Cores by the quota of each control group of this process that has one."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _version_2(mount, path)
        elif "cpu" in controllers.split(","):
            yield from _version_1(mount / controllers, path)
            yield from _version_1(mount / "cpu", path)


def _version_2(top: Path, path: str) -> Iterator[float]:
    for folder in _upwards(top, path):
        text = _read(folder / "cpu.max").split()
        if len(text) == 2 and text[0].isdecimal():
            yield int(text[0]) / int(text[1])


def _version_1(top: Path, path: str) -> Iterator[float]:
    for folder in _upwards(top, path):
        quota, period = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal():  # a quota of -1 is none
            yield int(quota) / int(period)


def _upwards(top: Path, path: str) -> Iterator[Path]:
    """The folder of a control group and those of the groups that hold it."""
    folder = top / path.lstrip("/")
    yield folder
    yield from (each for each in folder.parents if each == top or top in each.parents)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
