"""Single candidates of recompute, and the modes in which several go together."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from ..lowering.segments import Variant
from .candidates import Candidates, RecomputeDependencies
from .regions import Recompute
from .skeleton import RecomputeChoice

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RecomputeCandidate:
    """One thing to recompute or not: maps of a fusible region, or else full-batch maps."""

    recompute: Recompute
    number: int  # of the region, or of the full-batch recompute
    in_region: bool

    def passes(self, known: Candidates) -> Collection[int]:
        """The passes of its region, or those that run again."""
        if self.in_region:
            return known.regions[self.number].passes
        return known.full_batch[self.number].makers

    def flipped(self, choice: RecomputeChoice) -> RecomputeChoice:
        """The choice with this decision changed."""
        if not self.in_region:
            return replace(choice, full_batch=choice.full_batch ^ {self.number})
        changed = choice.recomputed[self.number] ^ self.recompute.buffers
        block = choice.blocks[self.number] or Variant.PERFORMANCE
        return replace(
            choice,
            recomputed=with_item(choice.recomputed, self.number, changed),
            blocks=with_item(choice.blocks, self.number, block),
        )


@dataclass(frozen=True)
class RecomputeMode:
    """Candidates that go together, and how the maps that they read are made."""

    ranked: tuple[RecomputeCandidate, ...]  # the fewest seconds a byte first
    memory_centric: bool  # see RecomputeChoice
    stages: frozenset[int] = frozenset()  # numbers of the barrier stages

    def choice(self, known: Candidates, block: Variant, count: int) -> RecomputeChoice:
        """The choice to recompute the first `count` candidates and no others."""
        recomputed, full_batch = [frozenset[str]()] * len(known.regions), set[int]()
        for each in self.ranked[:count]:
            if each.in_region:
                recomputed[each.number] |= each.recompute.buffers
            else:
                full_batch.add(each.number)
        return RecomputeChoice(
            block,
            (block,) * len(recomputed),
            tuple(recomputed),
            frozenset(full_batch),
            self.memory_centric,
            self.stages,
        )


def ranked_candidates(known: Candidates) -> list[RecomputeCandidate]:
    """All that can be recomputed, the fewest seconds a byte first."""
    candidates = [
        RecomputeCandidate(recompute, number, True)
        for number, region in enumerate(known.regions)
        for recompute in region.recomputes
    ]
    candidates += [
        RecomputeCandidate(each.recompute, number, False)
        for number, each in enumerate(known.full_batch)
    ]
    return sorted(candidates, key=lambda each: each.recompute.seconds_per_byte)


def compatible(
    known: Candidates, ranked: Iterable[RecomputeCandidate], early_nbytes: float
) -> Iterator[RecomputeCandidate]:
    """The candidates but those that conflict with one before."""
    made = RecomputeDependencies(known.first_backward_use, early_nbytes)
    for each in ranked:
        if each.in_region or made.add(known.full_batch[each.number]):
            yield each


def with_item(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    """The items with another one at this index."""
    return (*items[:index], item, *items[index + 1 :])
