"""Rounding that a user allows: its limit, the codecs left within it, and plans made anew."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import BudgetError, HostMemoryError, InputError
from ..graph import Form
from .ir.costs import Costs
from .ir.schedule import Schedule
from .make import Problem
from .policies.auto import AUTO

ALLOWED: Final = "lossy"
EXAMPLE: Final = 'write for example allow="lossy:0.03"'


def parse_allowed(text: str | None) -> float | None:
    """The limit of "lossy:0.03": the largest relative RMS error of a parameter's gradient.

    None without a text: all gradients are exact. Raises InputError for another text, and for a
    limit that is not from 0 to below 1.
    """
    if text is None:
        return None
    found = re.fullmatch(rf"\s*{ALLOWED}:(\d*\.?\d+(?:e-?\d+)?)\s*", text.lower())
    if found is None:
        raise InputError(f"allow={text!r} is not known; {EXAMPLE}, or leave it out")
    limit = float(found[1])
    if limit >= 1:
        raise InputError(
            f"allow={text!r} lets gradients be wrong by {limit:.0%}; its limit must be below 1: "
            f"{EXAMPLE}"
        )
    return limit


def rounding_policy(policy: str | None, limit: float | None) -> str | None:
    """The policy of a plan in which maps may be rounded: auto, which takes what is allowed.

    Raises InputError for any other. Without a limit it is the policy that was given.
    """
    if limit is None:
        return policy
    if policy not in (None, AUTO):
        raise InputError(
            f'policy {policy!r} takes no allow="lossy:{limit:g}"; choose {AUTO!r} for it, or leave '
            "allow out"
        )
    return AUTO


def first_forms(allowed: Mapping[str, tuple[Form, ...]]) -> dict[str, Form]:
    """By map the codec of which its code is smallest."""
    return {name: forms[0] for name, forms in allowed.items() if forms}


@dataclass(frozen=True, slots=True)
class RoundingRequest:
    """An exact schedule, and the codecs that may round maps in a new one within its budgets."""

    exact: Schedule
    costs: Costs
    lossy: Mapping[str, Form]
    lead: int | None
    host_budget: int | None
    paged: bool = True


def replan_rounding(request: RoundingRequest) -> Schedule | None:
    """The checked schedule that rounds maps; None where none is predicted to be faster."""
    exact = request.exact
    limits = exact.budget_nbytes, request.host_budget, exact.tiers
    problem = Problem(exact.graph, request.costs, *limits, paged=request.paged)
    try:
        found = problem.rounding(request.lossy, exact).schedule(AUTO, lead=request.lead)
    except (BudgetError, HostMemoryError):
        return None
    return found if found.plan.rounded else None
