"""Output: results to standard output or a JSON file, progress and messages to standard error."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from ..experiment.progress import StageReport
from ..experiment.together import is_first, is_launched

DONE, FAILED, USAGE = 0, 1, 2
PLAIN_WIDTH = 200  # characters of a line where there is no terminal
STDOUT = "-"


def messages() -> Console:
    """A console on standard error for messages and progress; silent in all processes but one."""
    return _messages(quiet=not is_first())


def _messages(*, quiet: bool) -> Console:
    return Console(stderr=True, emoji=False, highlight=False, soft_wrap=True, quiet=quiet)


def fail(error: object, code: int = FAILED) -> int:
    """Print an error in one line. Returns the exit code."""
    process = f"process {os.environ['RANK']}: " if is_launched() else ""
    _messages(quiet=False).print(
        f"error: {process}{str(error).splitlines()[0]}", style="red", markup=False
    )
    return code


def show(*renderables: RenderableType, json_file: str | None) -> None:
    """Print results. They go to standard error where standard output holds JSON."""
    console = Console(
        stderr=json_file == STDOUT, emoji=False, highlight=False, quiet=not is_first()
    )
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    for renderable in renderables:
        console.print(renderable)


def write_json(data: Any, json_file: str | None) -> None:
    """Write `data` to a file, or to standard output for "-". Does nothing for None."""
    if json_file is None or not is_first():
        return
    text = json.dumps(data, indent=1) + "\n"
    if json_file == STDOUT:
        sys.stdout.write(text)
    else:
        Path(json_file).write_text(text)


@contextmanager
def stages(console: Console, label: str) -> Iterator[StageReport]:
    """A progress report: a live bar on a terminal, otherwise a line for each stage."""
    if console.is_terminal:
        with _live(console) as progress:
            yield _bars(progress, label)
    else:
        yield _lines(console, label)


def _live(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


def _bars(progress: Progress, label: str) -> StageReport:
    task = progress.add_task(label, total=1.0)

    def report(stage: str, fraction: float) -> None:
        progress.update(task, description=f"{label}: {stage}", completed=fraction)

    return report


def _lines(console: Console, label: str) -> StageReport:
    seen: set[str] = set()

    def report(stage: str, fraction: float) -> None:
        if stage not in seen:
            seen.add(stage)
            console.print(f"{label}: {stage}", markup=False)

    return report
