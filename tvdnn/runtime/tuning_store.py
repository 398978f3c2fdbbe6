"""The store of tuning on disk: trials and results for a network on a machine."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ..graph import ChunkSizes, Network
from ..planner.ir.settings import Choice, Tuned
from .disk_cache import cache_file, sources, write_whole

EMPTY: Final[Mapping[str, Any]] = {"trials": {}, "chunks": None, "choices": {}}


class TuningStore:
    """The trials and results of `network`, computed in `dtype`, on the machine `hardware`.

    `trials` holds the seconds of a step for each trial, or the share of its time that a launch
    takes as configured. None stands for a trial that does not fit or does not run. `tuned` is the
    result. Each change is written to disk at once: no trial is lost.
    """

    def __init__(self, hardware: str, network: Network, dtype: str) -> None:
        self.path = _path(hardware, network, dtype)
        stored = json.loads(self.path.read_text()) if self.path.exists() else EMPTY
        self.trials: dict[str, float | None] = dict(stored["trials"])
        self.tuned = _tuned(stored)

    def add_trial(self, name: str, seconds: float | None) -> None:
        self.trials[name] = seconds
        self._save()

    def set_tuned(self, tuned: Tuned) -> None:
        self.tuned = tuned
        self._save()

    def forget(self) -> None:
        """Delete all trials and results."""
        self.trials, self.tuned = {}, Tuned()
        self._save()

    def _save(self) -> None:
        chunks = None if self.tuned.chunks is None else asdict(self.tuned.chunks)
        choices = {budget: asdict(choice) for budget, choice in self.tuned.choices.items()}
        configurations = self.tuned.configurations
        found = {"chunks": chunks, "choices": choices, "configurations": configurations}
        write_whole(self.path, {"trials": self.trials, **found})


def find_tuned(hardware: str, network: Network, dtype: str) -> Tuned | None:
    """The result for the network on this machine. None where the network was never tuned."""
    path = _path(hardware, network, dtype)
    return _tuned(json.loads(path.read_text())) if path.exists() else None


def has_records(hardware: str) -> bool:
    """Whether any network was tuned on this machine with these versions."""
    pattern = cache_file("tuned", hardware, sources(), "*")
    return any(pattern.parent.glob(pattern.name))


def _path(hardware: str, network: Network, dtype: str) -> Path:
    return cache_file("tuned", hardware, sources(), _hash_of(network, dtype))


def _hash_of(network: Network, dtype: str) -> str:
    """A hash of what a network computes in `dtype` on inputs of these shapes, but not its names."""
    numbers = {name: number for number, name in enumerate(network.values)}
    ops = [
        (
            op.kind,
            [numbers[name] for name in op.inputs],
            numbers[op.output],
            [network.params[name].shape if name else None for name in op.params],
            sorted((name, repr(value)) for name, value in op.attrs.items() if name != "op_id"),
        )
        for op in network.ops
    ]
    shapes = [value.shape for value in network.values.values()]
    text = repr((dtype, shapes, ops, [numbers[name] for name in network.outputs]))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tuned(stored: Mapping[str, Any]) -> Tuned:
    found = stored["chunks"]
    chunks = found and ChunkSizes(found["default"], tuple(map(tuple, found["classes"])))
    choices = {budget: Choice(**choice) for budget, choice in stored["choices"].items()}
    return Tuned(chunks, choices, stored.get("configurations"))
