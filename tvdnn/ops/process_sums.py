"""The launch of a sum over processes that train together."""

from torch import Tensor

from .operator import Launch


def run_sum(a: Launch) -> None:
    """Sum what the pass writes over all processes, in its place."""
    assert a.control.group is not None, "processes that train together have a group"
    a.control.group.sum(flat(a.writes[0]))


def flat(values: Tensor) -> Tensor:
    """The elements of a dense tensor as they lie in memory."""
    return values.as_strided((values.numel(),), (1,))
