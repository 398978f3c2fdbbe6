"""Sums of weight gradients: a launch of the whole batch may leave fewer rows, all of them read."""

from collections.abc import Mapping

from ...graph import Graph, Kind, Pass, Use
from ..ir.schedule import Action, Operand, Schedule, Step
from .check_bytes import schedule_error


def are_sums(graph: Graph, use: Use) -> bool:
    """True for a use of all rows of partial sums, which may be fewer than the buffer's."""
    return use.whole and graph.buffers[use.buffer].kind is Kind.PARTIAL


def check_sums(schedule: Schedule) -> None:
    """Raise ScheduleError unless every use of sums is of all the rows that the last launch left."""
    rows: dict[str, int] = {}  # by buffer, those that the latest launch that began sums has left
    for index, step in enumerate(schedule.steps):
        problem = _problem(schedule.graph, step, rows)
        if problem is not None:
            raise schedule_error(schedule, index, problem)


def _problem(graph: Graph, step: Step, rows: dict[str, int]) -> str | None:
    if step.action is not Action.LAUNCH:
        moved = step.reads[0]
        left = rows.get(moved.buffer, moved.stop)
        return f"moves {moved.stop} rows of sums for {left}" if moved.stop > left else None
    pass_ = graph.passes[step.pass_index]
    for use, operand in zip(pass_.reads, step.reads, strict=True):
        if are_sums(graph, use):
            problem = _used_problem(graph, operand, rows)
            if problem is not None:
                return problem
    for use, operand in zip(pass_.writes, step.writes, strict=False):
        if are_sums(graph, use):
            adds = pass_.reduction and step.start > 0
            of_written = _used_problem(graph, operand, rows) if adds else None
            problem = of_written or _left_problem(graph, pass_, step, operand)
            if problem is not None:
                return problem
            rows[operand.buffer] = operand.stop
    return None


def _used_problem(graph: Graph, operand: Operand, rows: Mapping[str, int]) -> str | None:
    left = rows.get(operand.buffer, graph.buffers[operand.buffer].rows)
    return None if operand.stop == left else f"uses {operand.stop} rows of sums for {left}"


def _left_problem(graph: Graph, pass_: Pass, step: Step, operand: Operand) -> str | None:
    """Why the launch may not leave so many rows, in words."""
    rows, least = graph.buffers[operand.buffer].rows, pass_.least_sums
    if operand.stop == rows:
        return None
    if least < 2 or (step.start, step.stop) != (0, pass_.domain):
        return f"leaves {operand.stop} rows of sums, not all {rows}"
    if operand.stop < least or (operand.stop - 1) % (least - 1):
        return f"leaves {operand.stop} rows of sums, which are at least {least}"
    return None
