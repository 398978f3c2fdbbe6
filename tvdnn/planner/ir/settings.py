"""What tuning found: chunk sizes of a network, and for each budget how to plan and copy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ...graph import ChunkSizes
from ...units import Limit

ENGINE: Final = "engine"
KERNEL: Final = "kernel"
COPIES: Final = (ENGINE, KERNEL)  # by the GPU's copy engines, or by a kernel that stores itself
DEFAULT_POLICY: Final = "auto"
Configuration: TypeAlias = Mapping[str, int]  # of a launch: what is not as its kernel's rule has it
Table: TypeAlias = Mapping[str, Configuration]  # by launch
RULES: Final[Table] = {}  # by the rules alone


@dataclass(frozen=True, slots=True)
class Choice:
    """How to plan and copy inside a budget: none of it changes what is computed.

    `lead` are the most slots of the plan by which a prefetch may come ahead of its use, None for as
    many as there is room for.
    """

    policy: str = DEFAULT_POLICY
    lead: int | None = None
    copies: str = ENGINE


@dataclass(frozen=True, slots=True)
class Tuned:
    """Chunk sizes and configurations for all policies and budgets; choices for budgets, as text.

    None where chunk sizes, or configurations, were not tuned.
    """

    chunks: ChunkSizes | None = None
    choices: Mapping[str, Choice] = field(default_factory=dict)
    configurations: Table | None = None


def choose(tuned: Tuned | None, budget: Limit, requested: "Requested") -> Choice:
    """What was asked for, and for the rest what was found for this budget and the policy."""
    found = None if tuned is None else tuned.choices.get(str(budget))
    policy = requested.policy or (DEFAULT_POLICY if found is None else found.policy)
    if found is None or found.policy != policy:
        found = Choice(policy)
    lead = found.lead if requested.lead is None else requested.lead
    return Choice(policy, lead, requested.copies or found.copies)


@dataclass(frozen=True, slots=True)
class Requested:
    """What the user asks of a choice; None where it is left to tuning."""

    policy: str | None = None
    lead: int | None = None
    copies: str | None = None
