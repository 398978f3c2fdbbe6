"""Maker runs: ahead of which segments the makers of maps may run again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...graph import Direction, Kind
from ..recompute.joined_passes import join_run
from ..recompute.regions import MAPS
from ..recompute.skeleton import Skeleton
from ..recompute.supplies import Supply

# Of makers: ingredients of ingredients are made as far as they are no more. Of the ingredients of
# maps that backward reads, those that many makers ask for are left out first.
MOST_RUNS = 1500
MOST_DEPTH = 6  # of ingredients of ingredients

Uses: TypeAlias = Mapping[str, Mapping[int, int | None]]  # by buffer and segment, the first reader
RunKey: TypeAlias = tuple[tuple[int, ...], int]  # makers, and a segment


@dataclass(frozen=True, slots=True)
class MakerRun:
    """The makers of a supply, run again ahead of a segment for one of its passes."""

    supply: Supply
    point: int  # segment
    reader: int  # pass

    @property
    def key(self) -> RunKey:
        return self.supply.passes, self.point


class MakerRuns:
    """All runs of a skeleton: for the readers of maps in backward, and for their makers in turn."""

    def __init__(self, skeleton: Skeleton, uses: Uses) -> None:
        self._graph, self._uses = skeleton.program.graph, uses
        self._segments = skeleton.program.plan.segments
        self._supplies = skeleton.candidates.supplies
        pairs = zip(skeleton.candidates.regions, skeleton.choice.blocks, strict=True)
        inner = {name for region, block in pairs if block for name in region.inner}
        stages = (skeleton.candidates.stages[number] for number in skeleton.choice.stages)
        self._inner = inner.union(name for each in stages for name, _ in each.made)
        runs = self._found()
        self.found = tuple(runs.values())
        self._number = {key: number for number, key in enumerate(runs)}
        self._of_buffer: dict[str, list[int]] = {}
        for number, run in enumerate(self.found):
            for name in run.supply.buffers:
                self._of_buffer.setdefault(name, []).append(number)

    @property
    def buffers(self) -> list[str]:
        """The buffers that runs make."""
        return sorted(self._of_buffer)

    def serving(self, buffer: str, reader: int, low: int, high: int) -> Iterator[int]:
        """The runs behind segment `low`, up to `high`, that make what the reader in it reads."""
        sources = self._supplies.sources(buffer, reader)
        for number in self._of_buffer[buffer]:
            run = self.found[number]
            if low < run.point <= high and sources and sources.issubset(run.supply.passes):
                yield number

    def takes(self, run: MakerRun) -> Iterator[tuple[str, int | None]]:
        """The maps that the makers read, and the run that makes each again at the same point."""
        for name, sources in self._parts(run.supply):
            other = self._asked(sources, run.point, run.reader)
            yield name, self._number.get(other.key) if other else None

    def first_pass(self, segment: int) -> int:
        return self._segments[segment].slots[0].pass_index

    def is_forward(self, segment: int) -> bool:
        passes = (self._graph.passes[slot.pass_index] for slot in self._segments[segment].slots)
        return all(pass_.direction is Direction.FORWARD for pass_ in passes)

    def join(self, run: MakerRun) -> bool:
        """Whether all makers go by block with the segment."""
        segment = [slot.pass_index for slot in self._segments[run.point].slots]
        return join_run(self._graph, segment, run.supply.passes)

    def _found(self) -> dict[RunKey, MakerRun]:
        found = {run.key: run for run in self._own()}
        last = [*found.values()]
        for depth in range(MOST_DEPTH):
            asked = (
                self._asked(sources, run.point, run.reader)
                for run in sorted(last, key=lambda run: len(run.supply.passes))
                for _, sources in self._parts(run.supply)
            )
            more = {run.key: run for run in asked if run and run.key not in found}
            left = MOST_RUNS - len(found)
            if depth and len(more) > left:
                break
            last = [*more.values()][: max(0, left)]
            found |= {run.key: run for run in last}
        return dict(sorted(found.items()))

    def _own(self) -> Iterator[MakerRun]:
        """The runs for readers of maps in backward."""
        for name, uses in self._uses.items():
            if self._graph.buffers[name].kind in MAPS:
                for segment, reader in uses.items():
                    if reader is not None and not self.is_forward(segment):
                        run = self._asked(self._supplies.sources(name, reader), segment, reader)
                        yield from [run] if run else []

    def _asked(self, sources: frozenset[int], point: int, reader: int) -> MakerRun | None:
        """The run that makes what these passes wrote; None where they may not run again."""
        supply = self._supplies.making(sources, reader) if sources else None
        return MakerRun(supply, point, reader) if supply and self._may_run(supply) else None

    def _may_run(self, supply: Supply) -> bool:
        """Whether forward passes make whole maps from others, none of them inner maps by block."""
        graph = self._graph
        lasting = {name for name in supply.buffers if self._lasts(name)}
        taken = {graph.buffers[name].kind for name in supply.takes}
        return (
            bool(supply.passes)
            and all(graph.passes[i].direction is Direction.FORWARD for i in supply.all_passes)
            and all(graph.buffers[name].kind in MAPS for name in lasting)
            and taken <= {*MAPS, Kind.INPUT}
            and self._inner.isdisjoint(supply.buffers | supply.takes)
        )

    def _lasts(self, name: str) -> bool:
        """Whether the buffer is no workspace of one pass, nor a copy of weights."""
        kind = self._graph.buffers[name].kind
        return kind in MAPS or (
            kind is not Kind.WEIGHT and bool(self._supplies.backward_readers(name))
        )

    def _parts(self, supply: Supply) -> list[tuple[str, frozenset[int]]]:
        """Of maps, what the makers read and make not: each with the passes that wrote it."""
        passes, producers = self._graph.passes, self._supplies.producers
        found = {
            (use.buffer, sources)
            for index in supply.passes
            for use, sources in zip(passes[index].reads, producers[index], strict=True)
            if use.buffer in supply.takes
        }
        return sorted(found, key=lambda part: (part[0], sorted(part[1])))
