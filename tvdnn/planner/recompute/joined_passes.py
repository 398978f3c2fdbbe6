"""Passes that go block by block together, and the makers that may join them."""

from collections.abc import Iterable, Iterator, Sequence

from ...graph import Direction, Graph, Kind, Pass, Use
from ..ir.plan import Slot
from ..lowering.leads import only_makers_lead


def goes_by_sample(pass_: Pass) -> bool:
    return pass_.splittable and pass_.direction is not Direction.UPDATE


class JoinedPasses:
    """Passes that go block by block together, and which others may join them."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._written: set[str] = set()
        self._at_once_read: set[str] = set()  # all rows of them, or those of neighbouring blocks
        self._at_once_written: set[str] = set()
        self._whole_read: set[str] = set()  # all rows of them

    @classmethod
    def of(cls, passes: Iterable[Pass]) -> "JoinedPasses":
        joined = cls()
        for pass_ in passes:
            joined.add(pass_)
        return joined

    def admits(self, pass_: Pass, *, leading: bool = False) -> bool:
        """Whether no pass needs more of a buffer than the block that another has come to.

        Passes that may be `leading` come to neighbouring blocks before others need them.
        """
        read, at_once_read = (
            (_whole(pass_.reads), self._whole_read)
            if leading
            else (_at_once(pass_.reads), self._at_once_read)
        )
        return (
            self._written.isdisjoint(read)
            and self._used.isdisjoint(_at_once(pass_.writes))
            and at_once_read.isdisjoint(pass_.written_buffers)
            and self._at_once_written.isdisjoint(pass_.used_buffers)
        )

    def copy(self) -> "JoinedPasses":
        other = JoinedPasses()
        for name in vars(self):
            setattr(other, name, set(getattr(self, name)))
        return other

    def must_precede(self, pass_: Pass) -> bool:
        """Whether the pass reads what these write, or writes over what they use."""
        ours, theirs = self._written, self._used
        return not (
            ours.isdisjoint(pass_.read_buffers) and theirs.isdisjoint(pass_.written_buffers)
        )

    def add(self, pass_: Pass) -> None:
        """Let the pass join these."""
        self._used |= pass_.used_buffers
        self._written |= pass_.written_buffers
        self._at_once_read |= _at_once(pass_.reads)
        self._at_once_written |= _at_once(pass_.writes)
        self._whole_read |= _whole(pass_.reads)


def _at_once(uses: Iterable[Use]) -> set[str]:
    return {use.buffer for use in uses if use.whole or use.neighbour}


def _whole(uses: Iterable[Use]) -> set[str]:
    return {use.buffer for use in uses if use.whole}


def join_run(graph: Graph, run: Sequence[int], makers: Sequence[int]) -> bool:
    """Whether all these makers may go through the blocks of a run."""
    joined = JoinedPasses.of(graph.passes[index] for index in run)
    return num_apart(graph, run, joined, makers, [], run) == 0


def num_apart(
    graph: Graph,
    run: Sequence[int],
    joined: JoinedPasses,
    makers: Sequence[int],
    before: Sequence[Slot],
    after: Sequence[int],
) -> int:
    """How many makers go ahead of a run; the last ones join the passes that are joined so far.

    They go between the slots `before` and the passes of the run that come `after`.
    """
    leading = graph.row_tiles > 1
    number, known = len(makers), joined.copy()
    while number and all(goes_by_sample(graph.passes[index]) for index in run):
        pass_ = graph.passes[makers[number - 1]]
        alike = goes_by_sample(pass_) and pass_.domain == graph.passes[run[0]].domain
        if not alike or not known.admits(pass_, leading=leading):
            break
        known.add(pass_)
        number -= 1
    rest = [Slot(index) for index in after]
    while leading and number < len(makers):
        joining = [Slot(index, recompute=True) for index in makers[number:]]
        if only_makers_lead(graph, [*before, *joining, *rest]):
            break
        number += 1
    return number


def joined_groups(graph: Graph, makers: Iterable[int]) -> Iterator[list[int]]:
    """The makers in groups that go block by block together.

    What one makes for another of its group exists for one block at a time.
    """
    group, joined, leading = list[int](), JoinedPasses(), graph.row_tiles > 1
    for index in makers:
        pass_ = graph.passes[index]
        others = [graph.passes[each] for each in group]
        alike = all(goes_by_sample(each) and each.domain == pass_.domain for each in others)
        joins = alike and goes_by_sample(pass_) and joined.admits(pass_, leading=leading)
        if group and not joins:
            yield group
            group, joined = [], JoinedPasses()
        group.append(index)
        joined.add(pass_)
    yield from [group] if group else []


def is_pack(graph: Graph, pass_: Pass) -> bool:
    """Whether the pass copies weights."""
    names = pass_.used_buffers
    return all(graph.buffers[name].kind is Kind.WEIGHT for name in names)
