"""Kernel autotuning: the tunable launches of a step, and the time that each candidate takes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from triton.errors import TritonError

from ..graph import Graph
from ..kernels.language.overrides import TileRequest
from ..kernels.tuning.candidates import candidates
from ..planner.ir.costs import Costs
from ..planner.ir.settings import RULES, Configuration
from .launch_timer import SCRATCH_NBYTES, Scratch
from .precompile import compiling
from .profiler import signature

# Passes are tuned, longest first, until they make up this share of the compute time of a step.
SHARE: Final = 0.9
# Rule and candidate are measured in turn this many times. The least time of each counts.
ROUNDS: Final = 2
# Errors of a candidate that does not compile or does not launch.
REFUSALS: Final = (TritonError, RuntimeError, ValueError, AssertionError)


@dataclass(frozen=True, slots=True)
class Tunable:
    """A launch that takes configurations: its key, the pass that launches it, its candidates."""

    key: str
    pass_index: int
    candidates: tuple[Configuration, ...]


class Autotuner:
    """Times launches of the passes of `graph` on a device, by the rule and by each candidate."""

    def __init__(
        self, graph: Graph, device: torch.device, kernels: str, limit: int = SCRATCH_NBYTES
    ) -> None:
        self._graph, self._device = graph, device
        self._scratch = Scratch(graph, device, kernels, limit)
        self._ready: str | None = None
        self._expected: tuple[torch.Tensor, ...] = ()

    def worth(self, costs: Costs) -> tuple[Tunable, ...]:
        """The tunable launches of the passes that take most of the compute time, longest first."""
        found: dict[str, Tunable] = {}
        for index in self._longest(costs):
            for key, asked in self._asked(index).items():
                if key not in found and (tried := candidates(asked)):
                    found[key] = Tunable(key, index, tuple(tried))
        return tuple(found.values())

    def compile(self, every: Iterable[Tunable]) -> None:
        """Compile all candidates of the launches in parallel."""
        with compiling(self._device):
            for each in every:
                for configuration in each.candidates:
                    self._scratch.configurations.table = {each.key: configuration}
                    self._scratch.try_out(each.pass_index, [self._rows(each.pass_index)])

    def share(self, each: Tunable, configuration: Configuration) -> float | None:
        """Time of a pass with the configuration, as a share of its time by the rule.

        None where the configuration does not run, or changes the bits of a result.
        """
        index, rows = each.pass_index, self._rows(each.pass_index)
        if self._ready != each.key:
            self._scratch.configurations.table = RULES
            self._expected, self._ready = self._scratch.results(index, rows), each.key
        own = {each.key: configuration}
        try:
            if not self._agrees(index, rows, own):
                return None
            seconds = [self._seconds(index, rows, way) for way in (RULES, own) * ROUNDS]
        except REFUSALS:
            return None
        return min(seconds[1::2]) / min(seconds[::2])

    def _longest(self, costs: Costs) -> Iterator[int]:
        """The first pass of each signature, by the seconds that the signature takes."""
        seconds: dict[str, float] = {}
        first: dict[str, int] = {}
        for index, pass_ in enumerate(self._graph.passes):
            form = signature(self._graph, pass_)
            seconds[form] = seconds.get(form, 0.0) + costs.launch_s(pass_, pass_.domain)
            first.setdefault(form, index)
        left = sum(seconds.values())
        little = (1 - SHARE) * left
        for form in sorted(seconds, key=lambda form: seconds[form], reverse=True):
            if left <= little:
                return
            left -= seconds[form]
            yield first[form]

    def _asked(self, index: int) -> Mapping[str, TileRequest]:
        self._scratch.configurations.table = RULES
        self._scratch.configurations.requests.clear()
        self._scratch.call(index, self._rows(index))()
        return dict(self._scratch.configurations.requests)

    def _agrees(self, index: int, rows: int, own: Mapping[str, Configuration]) -> bool:
        """Whether the pass writes the same bits as by the rule."""
        self._scratch.configurations.table = own
        left = self._scratch.results(index, rows)
        return all(map(torch.equal, left, self._expected))

    def _seconds(self, index: int, rows: int, way: Mapping[str, Configuration]) -> float:
        self._scratch.configurations.table = way
        return self._scratch.measure(index, rows)

    def _rows(self, index: int) -> int:
        return max(self._scratch.row_counts(self._graph.passes[index]))
