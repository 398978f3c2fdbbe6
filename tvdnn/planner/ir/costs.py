"""Costs: seconds per launch and copy rates, from a hardware profile's roofline or measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...graph import Pass


@dataclass(frozen=True, slots=True)
class Link:
    """A host link: bytes per second each way, alone and while both run, and seconds a copy call."""

    to_host: float
    to_device: float
    to_host_duplex: float
    to_device_duplex: float
    latency_s: float


class Costs(Protocol):
    """What planner and simulator ask of a machine.

    `hardware` names it, `measured` tells a profile from a roofline.
    """

    @property
    def hardware(self) -> str: ...
    @property
    def measured(self) -> bool: ...
    @property
    def link(self) -> Link: ...
    def launch_s(self, pass_: Pass, rows: int) -> float:
        """Seconds of one launch of `pass_` over `rows` rows of its domain."""
        ...

    def least_s(self, pass_: Pass) -> float:
        """Seconds of `pass_` over its domain, in whatever launches it takes least."""
        ...


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine from its data sheet.

    `flops` maps a compute type ("bf16", "tf32", "fp32") to peak FLOP/s, `bandwidth` is the device
    memory's in bytes per second. `efficiency` is the share of peak assumed for compute and
    `memory_efficiency` that of memory bandwidth.
    """

    name: str
    memory_nbytes: int
    bandwidth: float
    flops: Mapping[str, float]
    efficiency: float
    memory_efficiency: float
    launch_s: float
    link: Link
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Costs from a hardware profile: a launch's overhead, and the longer of its work and bytes."""

    profile: Hardware
    dtype: str

    @property
    def hardware(self) -> str:
        return self.profile.name

    @property
    def measured(self) -> bool:
        return False

    @property
    def link(self) -> Link:
        return self.profile.link

    def launch_s(self, pass_: Pass, rows: int) -> float:
        share = rows / pass_.domain
        flops_s = pass_.flops * share / (self.profile.flops[self.dtype] * self.profile.efficiency)
        bytes_s = pass_.nbytes * share / (self.profile.bandwidth * self.profile.memory_efficiency)
        return self.profile.launch_s + max(flops_s, bytes_s)

    def least_s(self, pass_: Pass) -> float:
        return self.launch_s(pass_, pass_.domain)


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs measured on a GPU: by pass name, seconds at numbers of rows, interpolated between."""

    hardware: str
    link: Link
    samples: Mapping[str, tuple[tuple[int, float], ...]]

    @property
    def measured(self) -> bool:
        return True

    def launch_s(self, pass_: Pass, rows: int) -> float:
        points = self.samples[pass_.name]
        below = max((p for p in points if p[0] <= rows), default=points[0])
        above = min((p for p in points if p[0] >= rows), default=points[-1])
        if below[0] == above[0]:
            return below[1] * rows / below[0]
        slope = (above[1] - below[1]) / (above[0] - below[0])
        return below[1] + slope * (rows - below[0])

    def least_s(self, pass_: Pass) -> float:
        """The least seconds a row are at a sample: between two they lie between theirs."""
        a_row = (seconds / rows for rows, seconds in self.samples[pass_.name])
        return pass_.domain * min(a_row)
