"""The launches of sums over processes that train together, and of what follows them."""

from torch import Tensor

from .operator import Launch


def run_sum(a: Launch) -> None:
    """Sum what the pass writes over all processes, in its place."""
    assert a.control.group is not None, "processes that train together have a group"
    a.control.group.sum(flat(a.writes[0]))


def run_scatter(a: Launch) -> None:
    """Sum what the pass writes over all processes, each its own range alone."""
    assert a.control.group is not None
    a.control.group.scatter(flat(a.writes[0]))


def run_gather(a: Launch) -> None:
    """Give all processes what each has in its own range of what the pass writes."""
    assert a.control.group is not None
    a.control.group.gather(flat(a.writes[0]))


def flat(values: Tensor) -> Tensor:
    """The elements of a dense tensor as they lie in memory."""
    return values.as_strided((values.numel(),), (1,))
