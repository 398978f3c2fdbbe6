"""Budgets: the bytes inside which a step is planned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...graph import Graph
from .page_map import PAGE_NBYTES, page_nbytes_for
from .plan import FILE, HOST, PEER


@dataclass(frozen=True, slots=True)
class TierBudgets:
    """The tiers in which sections may rest away from the device, and the bytes of each.

    What the first tier cannot hold goes to the next. The host's bytes are a budget of their own.
    """

    order: tuple[str, ...] = (HOST,)
    nbytes: Mapping[str, int | None] = field(default_factory=dict)  # None: no limit

    @classmethod
    def with_file(cls, nbytes: int | None) -> "TierBudgets":
        """The host, and behind it a file of at most so many bytes."""
        return cls((HOST, FILE), {FILE: nbytes})

    def behind_peer(self, nbytes: int) -> "TierBudgets":
        """A peer of at most so many bytes, and these tiers behind it."""
        return TierBudgets((PEER, *self.order), {PEER: nbytes, **self.nbytes})


NO_TIERS: Final = TierBudgets()  # beside the host


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes to plan inside; None where there is no limit."""

    device: int | None = None
    host: int | None = None  # pinned
    arena: int | None = None  # what the graph's fixed bytes leave of the device's
    page_nbytes: int | None = PAGE_NBYTES  # of a paged arena; None: the device maps no pages
    tiers: TierBudgets = NO_TIERS

    @classmethod
    def of(
        cls,
        graph: Graph,
        device: int | None,
        host: int | None = None,
        tiers: TierBudgets = NO_TIERS,
        *,
        paged: bool = True,
    ) -> "Budgets":
        """The budgets of a graph on a device, whose arena may be `paged`."""
        arena = None if device is None else device - graph.fixed_nbytes
        return cls(device, host, arena, page_nbytes_for(arena or 0) if paged else None, tiers)

    def of_tier(self, tier: str) -> int | None:
        """The bytes that sections may take in a tier; None where there is no limit."""
        return self.host if tier == HOST else self.tiers.nbytes[tier]

    @property
    def away(self) -> int | None:
        """The bytes of all tiers that may be used; None where there is no limit."""
        known = [self.of_tier(tier) for tier in self.tiers.order]
        return None if None in known else sum(each for each in known if each is not None)
