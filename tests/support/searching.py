"""How long plans are searched for: briefly where a test asks for any plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tvdnn.planner.joint import search
from tvdnn.planner.lowering import launch_limits
from tvdnn.planner.offload import swap_problem


@contextmanager
def few_trials() -> Iterator[None]:
    """Plans of small networks are searched for as briefly as those of large ones.

    In the fewest bytes the best one takes seconds to find.
    """
    with (
        patch.object(swap_problem, "WORK", 2000),
        patch.object(launch_limits, "SCHEDULED_IN_ALL", 0),
        patch.object(search, "MOST_ORDERS", 1),
        patch.object(search, "DIVES", search.DIVES[:1]),
        patch.object(search, "WORK", 500),
    ):
        yield
