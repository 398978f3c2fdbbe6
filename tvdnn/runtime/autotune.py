"""Launches of a step that may be configured, and what they take as their candidates have it."""

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
from .precompile import compiling
from .profiler import SCRATCH_NBYTES, Scratch, signature

SHARE: Final = 0.9  # of a step's compute time, by the passes whose launches are worth it
ROUNDS: Final = 2  # of measurements of a rule and a candidate in turn, of which the least count
REFUSALS: Final = (TritonError, RuntimeError, ValueError, AssertionError)  # it does not compile


@dataclass(frozen=True, slots=True)
class Configurable:
    """A launch by its key, the pass that asks for it, and the configurations to try."""

    key: str
    pass_index: int
    candidates: tuple[Configuration, ...]


class Configuring:
    """Launches of the passes of `graph` on a device, by rule and by candidate."""

    def __init__(
        self, graph: Graph, device: torch.device, kernels: str, limit: int = SCRATCH_NBYTES
    ) -> None:
        self._graph, self._device = graph, device
        self._scratch = Scratch(graph, device, kernels, limit)
        self._ready: str | None = None
        self._expected: tuple[torch.Tensor, ...] = ()

    def worth(self, costs: Costs) -> tuple[Configurable, ...]:
        """The launches of the passes that most of a step's compute time goes to, longest first."""
        found: dict[str, Configurable] = {}
        for index in self._longest(costs):
            for key, asked in self._asked(index).items():
                if key not in found and (tried := candidates(asked)):
                    found[key] = Configurable(key, index, tuple(tried))
        return tuple(found.values())

    def compile(self, every: Iterable[Configurable]) -> None:
        """Compile the candidates of launches, all side by side."""
        with compiling(self._device):
            for each in every:
                for configuration in each.candidates:
                    self._scratch.configurations.table = {each.key: configuration}
                    self._scratch.try_out(each.pass_index, [self._rows(each.pass_index)])

    def share(self, each: Configurable, configuration: Configuration) -> float | None:
        """The share of the time by its rule that a launch's pass takes as configured.

        None for a configuration that does not run, or whose results have other bits.
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
        """A pass of each form, until what is left is little."""
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
        self._scratch.configurations.asked.clear()
        self._scratch.call(index, self._rows(index))()
        return dict(self._scratch.configurations.asked)

    def _agrees(self, index: int, rows: int, own: Mapping[str, Configuration]) -> bool:
        """Whether a pass leaves the bits that it leaves by the rules."""
        self._scratch.configurations.table = own
        left = self._scratch.results(index, rows)
        return all(map(torch.equal, left, self._expected))

    def _seconds(self, index: int, rows: int, way: Mapping[str, Configuration]) -> float:
        self._scratch.configurations.table = way
        return self._scratch.measure(index, rows)

    def _rows(self, index: int) -> int:
        return max(self._scratch.row_counts(self._graph.passes[index]))
