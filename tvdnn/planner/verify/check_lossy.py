"""Lossy codes: forward and all that is read for signs never depends on values that they rounded."""

from collections.abc import Iterator

from ...errors import ScheduleError
from ...graph import RAW, Direction, Graph, Need, Pass, Use, codec_of, is_lossy
from ..ir.schedule import Action, Operand, Schedule, Step


def check_lossy_codes(schedule: Schedule) -> None:
    """Check that each lossy code is made behind the last use of its rows by a pass of forward.

    Recomputes are no such uses. Raises ScheduleError.
    """
    later: dict[str, list[tuple[int, Operand]]] = {}
    for index in range(len(schedule.steps) - 1, -1, -1):
        step = schedule.steps[index]
        for code in step.writes if step.action is not Action.COPY else ():
            for user, operand in later.get(code.buffer, ()) if is_lossy(code.form) else ():
                if operand.start < code.stop and code.start < operand.stop:
                    where = f"step {index}, {schedule.step_name(index)}"
                    text = f"makes a lossy code before step {user}, {schedule.step_name(user)}"
                    raise ScheduleError(f"{where}, {text}, a forward use of the map")
        for operand in _forward_operands(schedule.graph, step):
            later.setdefault(operand.buffer, []).append((index, operand))


def _forward_operands(graph: Graph, step: Step) -> Iterator[Operand]:
    launches = step.action is Action.LAUNCH and not step.recompute
    if launches and graph.passes[step.pass_index].direction is Direction.FORWARD:
        yield from step.reads
        yield from step.writes


def rounded_use_problem(step: Step, pass_: Pass, use: Use) -> str | None:
    """Why a launch may not use values that a lossy code rounded; None if it may."""
    values = f"reads {use.buffer}, which a lossy code has rounded"
    if step.recompute:
        return f"{values}, in a recompute"
    if pass_.direction is not Direction.BACKWARD:
        return f"{values}, in {pass_.direction.value}"
    return None if use.need is Need.VALUES else f"{values}, for its {use.need.value}"


def rounded_recode_problem(source: Operand, target: Operand) -> str | None:
    """Why values that a lossy code rounded may not be recoded so; None if they may."""
    if target.form == RAW or codec_of(target.form).gives is Need.VALUES:
        return None
    return f"makes the {target.form} of {source.buffer}, which a lossy code has rounded"
