"""What a user requests of an engine, and what one step's schedule is then made of."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from ..errors import InputError
from ..graph import Graph
from ..planner.ir.budgets import NO_TIERS, TierBudgets
from ..planner.ir.costs import Costs
from ..planner.ir.settings import COPIES, Choice, Requested, Table
from ..planner.rounding import parse_allowed, rounding_policy
from ..runtime.host_slab import Slab
from ..runtime.section_file import SectionFile
from ..units import Limit, parse_bytes, parse_limit
from .build import ChunkSize, Progress
from .first_step import FirstStep
from .process_group import TrainingGroup

CPU: Final = torch.device("cpu")
CHECK_EVERY: Final = 1000  # steps


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Budgets and settings of an engine, as its user gave them.

    The seeds randomize order (CPU) or delays (GPU) for tests.
    """

    budget: Limit = None  # device bytes; "min" is the floor of the policy
    host_budget: int | None = None  # pinned bytes
    tiers: TierBudgets = NO_TIERS  # beside the host's
    file: SectionFile | Path | None = None  # or the folder in which one is made
    choice: Requested = field(default_factory=Requested)  # policy, lead and copies
    kernels: str | None = None  # "triton" or "torch"; None: by the device
    order_seed: int | None = None
    delay_seed: int | None = None
    costs: Costs | None = None  # instead of measured ones
    slab: Slab | None = None  # to share with other engines
    progress: Progress | None = None
    first_step: FirstStep | None = None  # begun before, which has `progress`
    feedback: bool = True  # plan anew by what the first steps take, where costs are measured
    allowed: float | None = None  # error of a gradient by rounded maps; None: no map is rounded
    check_every: int = CHECK_EVERY  # steps between two checks of that error
    clock: Costs | None = None  # of the machine that a CPU plays
    sized: bool = False  # whether chunk sizes are given, so that tuned ones do not count
    dtype: str | None = None  # of virtualized calls; None: as torch's own switches say
    opaque: bool = False  # whether submodules may run by torch's own code
    group: TrainingGroup | None = None  # of the processes that train together
    shares_plan: bool = False  # whether the first plan is one for the group
    device: torch.device = CPU  # where a network without parameters computes


@dataclass(frozen=True, slots=True)
class Resolved:
    """The graph of a step, how to plan it and copy, and how its kernels run."""

    graph: Graph
    choice: Choice
    configurations: Table


def requested_choice(policy: str | None, lead: int | None, copies: str | None) -> Requested:
    """The requested way to plan and copy. Raises InputError for copies that are not known."""
    if copies is not None and copies not in COPIES:
        raise InputError(f"copies {copies!r} are not known; choose {' or '.join(COPIES)}")
    return Requested(policy, lead, copies)


def requested_rounding(
    policy: str | None, allow: str | None, check_every: int
) -> tuple[str | None, dict[str, Any]]:
    """The policy, and the fields of a request that let it round maps.

    Raises InputError for a policy that rounds none as allowed, and for less than a step between
    checks.
    """
    allowed = parse_allowed(allow)
    if check_every < 1:
        raise InputError(f"lossy_check_every is {check_every}; a check comes every 1 or more steps")
    return rounding_policy(policy, allowed), {"allowed": allowed, "check_every": check_every}


def requested_memory(
    budget: int | str | None,
    host_budget: int | str | None,
    file: str | Path | SectionFile | None,
    file_budget: int | str | None,
    peer_budget: int | str | None,
) -> dict[str, Any]:
    """The fields of a request for memory. Raises InputError for a budget without a file."""
    if file is None and file_budget is not None:
        raise InputError(f"file_budget is {file_budget!r}, but there is no file; name a folder")
    tiers = NO_TIERS if file is None else TierBudgets.with_file(parse_bytes(file_budget))
    on_peer = parse_bytes(peer_budget)
    tiers = tiers if on_peer is None else tiers.behind_peer(on_peer)
    limits = {"budget": parse_limit(budget), "host_budget": parse_bytes(host_budget)}
    return {**limits, "file": Path(file) if isinstance(file, str) else file, "tiers": tiers}


def is_sized(chunk_size: ChunkSize, sections: int | None) -> bool:
    """Whether a user gives sizes of sections, which tuned ones then do not replace."""
    return chunk_size is not None or sections is not None
