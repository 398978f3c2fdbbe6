"""A results file as Markdown: its title, note and machine, and a table for each question."""

from collections.abc import Iterable, Iterator, Sequence

from bench import markdown
from bench.columns import KEYS, QUESTIONS, Column
from bench.entries import Entry, Result
from tvdnn.report.tables import NONE

COMMIT: Column = ("commit", lambda entry: entry.commit)
LEFT_OUT = ("relaxed ms",)  # of a table that would be too wide


def sections(results: Iterable[Result]) -> Iterator[str]:
    """A section for each file. A note that the section before has is left out."""
    said = ""
    for result in results:
        yield section(result, note="" if result.note == said else result.note)
        said = result.note


def section(result: Result, *, note: str) -> str:
    """Title, note, machine and tables of a results file."""
    head = (f"### {result.title}", note, f"<sub>{result.machine}</sub>" if result.machine else "")
    return "\n\n".join([*(part for part in head if part), *tables(result)])


def tables(result: Result) -> Iterator[str]:
    """A table for each question that some row answers, under a line with its commit."""
    keys = _telling(result.entries)
    for question, columns in QUESTIONS.items():
        shown = [column for column in columns if _any(column, result.entries)]
        entries = [e for e in result.entries if any(text(e) != NONE for _, text in shown)]
        if not entries:
            continue
        chosen = [*keys, *shown]
        if len(chosen) > markdown.MOST_COLUMNS:
            chosen = [column for column in chosen if column[0] not in LEFT_OUT]
        if len(result.commits) > 1 and len(chosen) < markdown.MOST_COLUMNS:
            chosen.append(COMMIT)
        body = [[text(entry) for _, text in chosen] for entry in entries]
        yield f"{question}, {markdown.at(result.commits)}:"
        yield markdown.table([heading for heading, _ in chosen], body, numbers=True)


def _telling(entries: Sequence[Entry]) -> list[Column]:
    """The policy, and the other keys in which rows differ."""
    return [
        (heading, text)
        for heading, text in KEYS
        if heading == "policy" or len({text(entry) for entry in entries}) > 1
    ]


def _any(column: Column, entries: Sequence[Entry]) -> bool:
    return any(column[1](entry) != NONE for entry in entries)
