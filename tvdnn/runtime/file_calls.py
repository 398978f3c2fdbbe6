"""File calls: copies to and from the file of a schedule, and the word that tells of a failure."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from ..ops.operator import Control
from ..planner.ir.schedule import Action, Lane, Schedule, Step
from .host_counts import FILE_LANES
from .views import ByteViews


def file_call(step: Step, memory: ByteViews) -> Callable[[], None]:
    """The call of a copy between the slab and the file."""
    file, (source,), (target,) = memory.file, step.reads, step.writes
    assert file is not None, "the schedule uses a file"
    name = f"{source.buffer} [{source.start}, {source.stop})"
    if step.lane is Lane.FILE_WRITE:
        given = memory.bytes_of(source)
        return lambda: file.write(given, target.offset, name)
    taken = memory.bytes_of(target)
    return lambda: file.read(taken, source.offset, name)


def without_file(
    schedule: Schedule, calls: Sequence[Callable[[], None]]
) -> list[Callable[[], None]]:
    """The calls of a schedule, of which those of the file do nothing."""
    pairs = zip(schedule.steps, calls, strict=True)
    return [_idle if step.lane in FILE_LANES else call for step, call in pairs]


def _idle() -> None:
    pass


def behind_error_word(
    schedule: Schedule,
    calls: list[Callable[[], None]],
    memory: ByteViews,
    control: Control,
    kernels: SimpleNamespace,
) -> list[Callable[[], None]]:
    """The calls of a schedule: where it uses the file, the first update reads the error word.

    It waits for all copies of the file. Where one failed, the flag is set then that all updates
    read, and nothing changes.
    """
    if memory.file is None or not schedule.file_nbytes:
        return calls
    passes, word = schedule.graph.passes, memory.file.error_word
    launches = (i for i, step in enumerate(schedule.steps) if step.action is Action.LAUNCH)
    steps = schedule.steps
    first = next((i for i in launches if passes[steps[i].pass_index].changes_parameters), None)
    if first is None:
        return calls
    update = calls[first]

    def run() -> None:
        kernels.raise_flag(word, control.flag)
        update()

    return [*calls[:first], run, *calls[first + 1 :]]
