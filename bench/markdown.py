"""Tables in Markdown."""

from collections.abc import Iterable, Sequence

MOST_COLUMNS = 9


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """The lines of a table; with `numbers` all columns but the first stand to the right.

    Raises ValueError for a table of more columns than a page shows.
    """
    if len(head) > MOST_COLUMNS:
        raise ValueError(f"the table has {len(head)} columns: {', '.join(head)}")
    kinds = ["---", *["---:" if numbers else "---"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, kinds, *rows))


def at(commits: Sequence[str]) -> str:
    """The words that tell at which commits a table was measured."""
    return f"at commit {commits[0]}" if len(commits) == 1 else f"at commits {', '.join(commits)}"
