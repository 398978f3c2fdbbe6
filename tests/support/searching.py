"""How long plans are searched for: briefly where a test asks for any plan."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from tvdnn.planner.joint import search
from tvdnn.planner.lowering import floor, launch_limits
from tvdnn.planner.offload import swap_problem

FEW: Final = (
    (swap_problem, "WORK", 2000),
    (floor, "RESTARTS", 2),
    (floor, "MANY_TRIALS", 3),
    (launch_limits, "SCHEDULED_IN_ALL", 0),
    (search, "MOST_ORDERS", 1),
    (search, "DIVES", search.DIVES[:1]),
    (search, "WORK", 500),
)


def effort() -> tuple[Any, ...]:
    """How long plans are searched for now."""
    return tuple(getattr(module, name) for module, name, _ in FEW)


@contextmanager
def few_trials() -> Iterator[None]:
    """Plans of small networks are searched for as briefly as those of large ones.

    In the fewest bytes the best one takes seconds to find.
    """
    with ExitStack() as stack:
        for module, name, value in FEW:
            stack.enter_context(patch.object(module, name, value))
        yield
