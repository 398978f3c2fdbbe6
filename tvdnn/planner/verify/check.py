"""Checker: proves that a schedule is safe to run, or names the step that is not and the reason.

The checker shares only the data classes with the planner. Steps are ordered as the executors order
them: by their lane, by their waits, and by the end of the first phase before the second.
"""

from ...errors import ScheduleError
from ...gc_pause import without_collection
from ...graph import (
    DTYPE_NBYTES,
    RAW,
    Buffer,
    Form,
    Graph,
    Pass,
    Use,
    codec_of,
    fits,
    in_form,
)
from ...units import format_bytes
from ..ir.page_map import PageMap
from ..ir.plan import FILE, PEER
from ..ir.schedule import Action, Lane, Operand, Schedule, Space, Step, lane_name
from .check_bytes import Clock, check_contents, schedule_error
from .check_lossy import check_lossy_codes
from .check_moves import check_counts, check_updates, copy_problem, gives, recode_problem
from .check_sums import are_sums, check_sums
from .coverage import check_coverage
from .expected_sources import read_sources
from .graph_values import check_provenance
from .residencies import check_residencies


@without_collection()
def check(schedule: Schedule) -> None:
    """Raise ScheduleError, naming the step and the fault, unless every order of the steps is safe.

    The proof has these parts:

    - Passes read the values and gradients that the traced network's ops name.
    - Operands are those of the pass, and in bounds.
    - Sums are used whole, by rows as their last launch leaves them.
    - Every pass covers its domain once, reductions in index order.
    - Waits name earlier steps of other lanes.
    - Accesses to the same bytes are ordered if one of them writes.
    - Every read finds the bytes that program order gives it, and so does the caller at the end.
    - A lossy code is made behind the last use by forward. Only backward reads what it rounded, and
      only for values.
    - The residencies record the accesses of the steps.
    - Arena, slab, file and peer are inside their budgets.
    - Parameters are updated after all copies of the file, so that none is where one fails.
    """
    check_provenance(schedule.graph)
    _check_sizes(schedule)
    _check_forms(schedule)
    check_counts(schedule)
    check_lossy_codes(schedule)
    check_sums(schedule)
    _check_reductions(schedule)
    check_residencies(schedule)
    clocks, expected = _clocks(schedule), read_sources(schedule.graph)
    check_coverage(schedule, expected)
    check_contents(schedule, clocks, expected)
    check_updates(schedule, clocks)


def _check_sizes(schedule: Schedule) -> None:
    limits = (
        ("device bytes", schedule.peak_nbytes, schedule.budget_nbytes, "budget"),
        ("host bytes", schedule.slab_nbytes, schedule.host_budget_nbytes, "host budget"),
        ("bytes in the file", schedule.file_nbytes, schedule.tiers.nbytes.get(FILE), "file budget"),
        ("bytes on the peer", schedule.peer_nbytes, schedule.tiers.nbytes.get(PEER), "peer budget"),
    )
    for what, nbytes, limit, name in limits:
        if limit is not None and nbytes > limit:
            raise ScheduleError(
                f"{nbytes:,} {what} ({format_bytes(nbytes)}) are above the {name} of {limit:,}"
            )
    for space, nbytes in schedule.sizes.items():
        if nbytes < 0:
            raise ScheduleError(f"the {space.name.lower()} cannot have {nbytes} bytes")
    pages = schedule.pages
    if pages is not None:
        _check_pages(pages, schedule.arena_nbytes)
    if not 0 <= schedule.phase_split <= len(schedule.steps):
        raise ScheduleError(
            f"the phase split {schedule.phase_split} is not among {len(schedule.steps)} steps"
        )


def _check_reductions(schedule: Schedule) -> None:
    """Check that what processes do together comes whole, once each and in the graph's order.

    All processes begin them in this order, whatever else their schedules do.
    """
    passes = schedule.graph.passes
    expected = [number for number, pass_ in enumerate(passes) if pass_.ranks]
    found = [step.pass_index for step in schedule.steps if step.lane is Lane.REDUCE]
    if found != expected:
        names = ", ".join(passes[number].name for number in found)
        raise ScheduleError(f"passes of processes together are in another order: {names}")


def _check_pages(pages: PageMap, arena_nbytes: int) -> None:
    """Check that every virtual page lies in a physical page of the arena."""
    if pages.page_nbytes < 1 or arena_nbytes % pages.page_nbytes:
        text = f"{arena_nbytes:,} bytes are no number of pages of {pages.page_nbytes:,} bytes"
        raise ScheduleError(f"an arena of {text}")
    count = arena_nbytes // pages.page_nbytes
    for virtual, page in enumerate(pages.table):
        if not 0 <= page < count:
            raise ScheduleError(f"virtual page {virtual} lies in page {page} of {count}")


def _check_forms(schedule: Schedule) -> None:
    """Check each step by itself: its lane, its range, its operands."""
    graph = schedule.graph
    sizes = {**schedule.sizes, Space.ARENA: schedule.addressed_nbytes}
    for index, step in enumerate(schedule.steps):
        for operand in (*step.reads, *step.writes):
            if operand.buffer not in graph.buffers:
                raise ScheduleError(f"step {index} names {operand.buffer!r}, which is no buffer")
            if not fits(graph.buffers[operand.buffer], operand.form):
                named = f"{operand.buffer} in form {operand.form!r}"
                raise ScheduleError(f"step {index} names {named}, which does not fit it")
        problem = PROBLEMS[step.action](graph, step)
        if problem is not None:
            raise ScheduleError(f"step {index} {problem}")
        for operand in (*step.reads, *step.writes):
            buffer = in_form(graph.buffers[operand.buffer], operand.form)
            problem = _operand_problem(operand, buffer, sizes[operand.space])
            if problem is not None:
                raise schedule_error(schedule, index, problem)


def _launch_problem(graph: Graph, step: Step) -> str | None:
    if not 0 <= step.pass_index < len(graph.passes):
        return f"launches pass {step.pass_index} of {len(graph.passes)}"
    pass_ = graph.passes[step.pass_index]
    where = f"launches {pass_.name} [{step.start}, {step.stop})"
    if step.lane is not (Lane.REDUCE if pass_.ranks else Lane.COMPUTE):
        return f"{where} on the {lane_name(step.lane)} lane"
    if not 0 <= step.start < step.stop <= pass_.domain:
        return f"{where}, which is not within its domain of {pass_.domain}"
    if step.start % pass_.unit or (step.stop % pass_.unit and step.stop != pass_.domain):
        return f"{where}, which cuts its unit of {pass_.unit}"
    uses, left = (*pass_.reads, *pass_.writes), _left_codes(pass_, step)
    operands = (*step.reads, *step.writes)
    if len(step.reads) != len(pass_.reads) or len(operands) != len(uses) + len(left):
        return f"{where} with {len(operands)} operands for {len(uses) + len(left)} uses"
    forms = [(RAW, *use.forms) for use in pass_.reads] + [(RAW,)] * len(pass_.writes)
    wanted = [*zip(uses, forms, strict=True), *((use, (form,)) for use, form in left)]
    for (use, forms_of_use), operand in zip(wanted, operands, strict=True):
        expected = use.rows(step.start, step.stop, graph.buffers[use.buffer])
        stop = operand.stop if are_sums(graph, use) else expected[1]
        if (operand.buffer, operand.start, operand.stop) != (use.buffer, expected[0], stop):
            found = f"{operand.buffer} [{operand.start}, {operand.stop})"
            return f"{where} on {found}, not on {use.buffer} [{expected[0]}, {expected[1]})"
        if operand.space is not Space.ARENA:
            return f"{where} on {operand.buffer} in the {operand.space.name.lower()}"
        if operand.form not in forms_of_use:
            return f"{where} on {operand.buffer} in form {operand.form!r}"
        if not gives(operand.form, use.need) and use in pass_.reads:
            return f"{where} on {operand.buffer} in form {operand.form!r}, which lacks its values"
    return _split_row(pass_, step, where)


def _left_codes(pass_: Pass, step: Step) -> list[tuple[Use, Form]]:
    """The codes that a launch leaves besides its writes, in the order of these."""
    forms = [(each.buffer, each.form) for each in step.writes[len(pass_.writes) :]]
    return [(use, form) for use in pass_.writes for form in use.also if (use.buffer, form) in forms]


def _split_row(pass_: Pass, step: Step, where: str) -> str | None:
    """The row of several domain rows that the launch writes only in part; None if there is none."""
    for use in pass_.writes:
        ends = (step.start, 0 if step.stop == pass_.domain else step.stop)
        if not use.whole and any(end % use.per for end in ends):
            return f"{where}, which writes a row of {use.buffer} only in part"
    return None


PROBLEMS = {
    Action.LAUNCH: _launch_problem,
    Action.COPY: copy_problem,
    Action.RECODE: recode_problem,
}


def _operand_problem(operand: Operand, buffer: Buffer, size: int) -> str | None:
    rows = f"{operand.buffer} [{operand.start}, {operand.stop})"
    if not 0 <= operand.start < operand.stop <= buffer.rows:
        return f"uses {rows} of {buffer.rows} rows"
    expected = (operand.stop - operand.start) * buffer.row_nbytes
    if operand.nbytes != expected:
        return f"uses {operand.nbytes} bytes for {rows}, which has {expected}"
    if operand.offset < 0 or operand.offset + operand.nbytes > size:
        ends = f"[{operand.offset}, {operand.offset + operand.nbytes})"
        return f"uses {rows} at {ends}, outside the {operand.space.name.lower()} of {size} bytes"
    code = operand.form != RAW
    alignment = codec_of(operand.form).alignment if code else DTYPE_NBYTES[buffer.dtype]
    if operand.offset % alignment:
        held = operand.form if code else buffer.dtype
        return f"uses {rows} at byte {operand.offset}, not aligned for {held}"
    return None


def _clocks(schedule: Schedule) -> list[Clock]:
    """By step, the last step of each lane that ends before it starts (on its own lane: itself).

    Waits name earlier steps only. The order of the steps is then possible, and there is no cycle.
    """

    clocks: list[Clock] = []
    ahead: list[Clock] = [(-1,) * len(Lane)] * len(Lane)
    for index, step in enumerate(schedule.steps):
        if index == schedule.phase_split:
            ahead = [(index - 1,) * len(Lane)] * len(Lane)
        clock = list(ahead[step.lane])
        for wait in step.waits:
            _check_wait(schedule, index, wait)
            clock = [max(pair) for pair in zip(clock, clocks[wait], strict=True)]
        clock[step.lane] = index
        ahead[step.lane] = tuple(clock)
        clocks.append(ahead[step.lane])
    return clocks


def _check_wait(schedule: Schedule, index: int, wait: int) -> None:
    if not 0 <= wait < len(schedule.steps):
        raise schedule_error(schedule, index, f"waits for step {wait}, which does not exist")
    if wait >= index:
        raise schedule_error(
            schedule, index, f"waits for step {wait}, which is not earlier: a deadlock"
        )
    if schedule.steps[wait].lane is schedule.steps[index].lane:
        raise schedule_error(schedule, index, f"waits for step {wait} of its own lane")
