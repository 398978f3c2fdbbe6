"""The cache of profiles on disk: seconds of passes and recodes, and rates of the link."""

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

import torch

from ..planner.ir.costs import Link, Samples
from ..planner.ir.settings import Table
from .disk_cache import cache_file, sources, write_whole

# Sources of how passes, recodes and the link are measured: results of others are not reused.
_MEASURING = [
    Path(__file__).with_name(name)
    for name in ("profiler.py", "launch_timer.py", "recode_timer.py", "link.py", "file_link.py")
]


class ProfileCache:
    """Measurements on disk: a file for each GPU, versions, kernels and way of measuring.

    The cache knows which launches of a pass asked for configurations. Only the configurations of
    these launches are part of the key of its seconds.
    """

    def __init__(self, device: torch.device, kernels: str) -> None:

        parts = (kernels, sources(*_MEASURING), platform.machine())
        self._path = cache_file("profile", torch.cuda.get_device_name(device), *parts)
        stored = json.loads(self._path.read_text()) if self._path.exists() else {}
        samples = stored.get("samples", {})
        self._samples: dict[str, Samples] = {
            key: tuple(map(tuple, rows)) for key, rows in samples.items()
        }
        self._asked: dict[str, list[str]] = stored.get("asked", {})
        names = {field.name for field in fields(Link)}
        links = stored.get("links", {}).items()
        self.links = {copies: Link(**link) for copies, link in links if link.keys() == names}

    @property
    def measured(self) -> dict[str, Samples]:
        """The measured seconds by key, without those of passes with configurations."""
        return {key: each for key, each in self._samples.items() if key in self._asked}

    def find(self, key: str, configurations: Table) -> Samples | None:
        """The measured seconds of a pass with its configurations, or of a recode.

        None for one not measured.
        """
        return self._samples.get(self._name(key, configurations))

    def add(
        self,
        key: str,
        configurations: Table,
        asked: Iterable[str],
        samples: Samples,
    ) -> None:
        self._asked[key] = sorted(asked)
        self._samples[self._name(key, configurations)] = samples

    def _name(self, key: str, configurations: Table) -> str:
        asked = [each for each in self._asked.get(key, ()) if each in configurations]
        own = [(each, sorted(configurations[each].items())) for each in asked]
        return repr((key, own)) if own else key

    def save(self) -> None:
        """Write all measurements to the file."""
        links = {copies: asdict(link) for copies, link in self.links.items()}
        found = {"samples": self._samples, "asked": self._asked, "links": links}
        write_whole(self._path, found)
