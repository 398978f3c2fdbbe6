"""Probe calls: calls of a schedule that keep maps exact, or see what passes add up.

A map that the schedule rounds goes by pageable host memory instead. The device holds the same bytes
as before.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import torch

from ..graph import is_lossy
from ..ops.operator import TORCH_DTYPES
from ..planner.ir.schedule import Action, Schedule, Step
from .binding import Call
from .views import ByteViews

CallChange: TypeAlias = Callable[[Schedule, ByteViews, Sequence[Call]], list[Call]]


class HeldMaps:
    """The host's memory of maps that are kept exact, for all probes of a step."""

    def __init__(self) -> None:
        self._rows: dict[str, torch.Tensor] = {}

    def keeping(
        self,
        exact: Collection[str],
        schedule: Schedule,
        memory: ByteViews,
        calls: Sequence[Call],
    ) -> list[Call]:
        """The calls in which the values of the maps `exact` are held on the host, where coded."""
        return [
            self._held(schedule, step, memory) if _recodes(step, exact) else call
            for step, call in zip(schedule.steps, calls, strict=True)
        ]

    def _held(self, schedule: Schedule, step: Step, memory: ByteViews) -> Call:
        source, target = step.reads[0], step.writes[0]
        buffer = schedule.graph.buffers[source.buffer]
        if buffer.name not in self._rows:
            self._rows[buffer.name] = torch.empty(buffer.shape, dtype=TORCH_DTYPES[buffer.dtype])
        rows = self._rows[buffer.name][source.start : source.stop]
        if is_lossy(target.form):
            return lambda: _copy(memory.view(source, buffer), rows)
        return lambda: _copy(rows, memory.view(target, buffer))


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


def _recodes(step: Step, maps: Collection[str]) -> bool:
    """Whether a step makes or reads a lossy code of one of these maps."""
    lossy = step.action is Action.RECODE and any(
        is_lossy(each.form) for each in (step.reads[0], step.writes[0])
    )
    return lossy and step.reads[0].buffer in maps


class SummedSquares:
    """The squares of maps that passes read, by pass and channel, summed over one step.

    `reads` are the numbers of the reads, by pass.
    """

    def __init__(self, reads: Mapping[int, int]) -> None:
        self._reads = reads
        self._found: dict[int, torch.Tensor] = {}

    def watching(self, schedule: Schedule, memory: ByteViews, calls: Sequence[Call]) -> list[Call]:
        """The calls, behind ones that add the squares of what the passes read."""
        return [
            self._behind(schedule, step, memory, call) if self._is_watched(step) else call
            for step, call in zip(schedule.steps, calls, strict=True)
        ]

    def roots(self) -> Mapping[int, float]:
        """By pass the root of the sums of squares: their RMS over all channels."""
        return {number: found.mean().sqrt().item() for number, found in self._found.items()}

    def _is_watched(self, step: Step) -> bool:
        launches = step.action is Action.LAUNCH and not step.recompute
        return launches and step.pass_index in self._reads

    def _behind(self, schedule: Schedule, step: Step, memory: ByteViews, call: Call) -> Call:
        number = self._reads[step.pass_index]
        operand, use = step.reads[number], schedule.graph.passes[step.pass_index].reads[number]
        buffer = schedule.graph.buffers[operand.buffer]
        first, last = use.channels or (0, buffer.shape[-1])

        def run() -> None:
            rows = memory.view(operand, buffer).cpu()[..., first:last].double()
            total = rows.square().flatten(0, -2).sum(0)
            self._found[step.pass_index] = self._found.get(step.pass_index, 0.0) + total
            call()

        return run


def probe_calls(
    held: HeldMaps, exact: Collection[str], squares: SummedSquares | None
) -> CallChange:
    """The change of a step's calls by which the maps `exact` are held, and squares are summed."""

    def change(schedule: Schedule, memory: ByteViews, calls: Sequence[Call]) -> list[Call]:
        found = held.keeping(exact, schedule, memory, calls)
        return found if squares is None else squares.watching(schedule, memory, found)

    return change
