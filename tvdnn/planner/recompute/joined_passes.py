"""Passes that go block by block together, and the makers that may join them."""

from collections.abc import Iterable, Iterator, Sequence

from ...graph import Direction, Graph, Kind, Pass, Use


def goes_by_sample(pass_: Pass) -> bool:
    return pass_.splittable and pass_.direction is not Direction.UPDATE


class JoinedPasses:
    """Passes that go block by block together, and which others may join them."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._written: set[str] = set()
        self._at_once_read: set[str] = set()  # all rows of them, or those of neighbouring blocks
        self._at_once_written: set[str] = set()

    @classmethod
    def of(cls, passes: Iterable[Pass]) -> "JoinedPasses":
        joined = cls()
        for pass_ in passes:
            joined.add(pass_)
        return joined

    def admits(self, pass_: Pass) -> bool:
        """Whether no pass needs more of a buffer than the block that another has come to."""
        read, written = _at_once(pass_.reads), _at_once(pass_.writes)
        return (
            self._written.isdisjoint(read)
            and self._used.isdisjoint(written)
            and self._at_once_read.isdisjoint(pass_.written_buffers)
            and self._at_once_written.isdisjoint(pass_.used_buffers)
        )

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


def _at_once(uses: Iterable[Use]) -> set[str]:
    return {use.buffer for use in uses if use.whole or use.neighbour}


def join_run(graph: Graph, run: Iterable[int], makers: Sequence[int]) -> bool:
    """Whether all these makers may go through the blocks of a run."""
    passes = [graph.passes[index] for index in run]
    return num_apart(graph, passes, JoinedPasses.of(passes), makers) == 0


def num_apart(
    graph: Graph, run: Sequence[Pass], joined: JoinedPasses, makers: Sequence[int]
) -> int:
    """How many makers go ahead of a run; the last ones join the passes that are joined so far."""
    number = len(makers)
    while number and all(map(goes_by_sample, run)):
        pass_ = graph.passes[makers[number - 1]]
        alike = goes_by_sample(pass_) and pass_.domain == run[0].domain
        if not alike or not joined.admits(pass_):
            break
        joined.add(pass_)
        number -= 1
    return number


def joined_groups(graph: Graph, makers: Iterable[int]) -> Iterator[list[int]]:
    """The makers in groups that go block by block together.

    What one makes for another of its group exists for one block at a time.
    """
    group, joined = list[int](), JoinedPasses()
    for index in makers:
        pass_ = graph.passes[index]
        others = [graph.passes[each] for each in group]
        alike = all(goes_by_sample(each) and each.domain == pass_.domain for each in others)
        if group and not (alike and goes_by_sample(pass_) and joined.admits(pass_)):
            yield group
            group, joined = [], JoinedPasses()
        group.append(index)
        joined.add(pass_)
    yield from [group] if group else []


def is_pack(graph: Graph, pass_: Pass) -> bool:
    """Whether the pass copies weights."""
    names = pass_.used_buffers
    return all(graph.buffers[name].kind is Kind.WEIGHT for name in names)
