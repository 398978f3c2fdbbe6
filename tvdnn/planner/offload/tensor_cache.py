"""The tensor cache of SuperNeurons: what leaves the device where bytes are short.

The cache is followed through the launches in order, when the plan is made. While all fits nothing
is copied. Backward goes from tail to head and finds the sections of the last layers still there.
"""

from collections.abc import Sequence

from ..lowering.idle import IdleInterval
from ..lowering.launch_limits import Array, MemoryLimit
from .belady import first_ranked


def least_recently_used(
    required: Array, intervals: Sequence[IdleInterval], limits: MemoryLimit
) -> list[IdleInterval] | None:
    """Idle intervals to offload so that launches that require `required` bytes fit, or None.

    The section of the oldest use leaves. Its copy may have begun at that use.
    """
    return first_ranked(required, intervals, limits, lambda idle: idle.last)
