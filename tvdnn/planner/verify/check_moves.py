"""Moves: the checks of copies and recodes, each by itself, and of the words of counts."""

from collections.abc import Sequence

from ...errors import ScheduleError
from ...graph import RAW, Fact, Form, Graph, Need, codec_of, is_packed, tail_of
from ..ir.schedule import FILE_ALIGNMENT, Action, Lane, Operand, Schedule, Space, Step, lane_name
from .expected_sources import CALLER, ChannelRange, span

ROUTES = {
    Lane.OFFLOAD: (Space.ARENA, Space.SLAB),
    Lane.PREFETCH: (Space.SLAB, Space.ARENA),
    Lane.FILE_WRITE: (Space.SLAB, Space.FILE),
    Lane.FILE_READ: (Space.FILE, Space.SLAB),
    Lane.PEER_OFFLOAD: (Space.ARENA, Space.PEER),
    Lane.PEER_PREFETCH: (Space.PEER, Space.ARENA),
}

# A recode on the offload lane encodes straight to the host.
RECODE_ROUTES = {
    Lane.COMPUTE: (Space.ARENA, Space.ARENA),
    Lane.OFFLOAD: (Space.ARENA, Space.SLAB),
}


def check_counts(schedule: Schedule) -> None:
    """Check that each packed code is counted, once, in a word of its own."""
    counted: set[int] = set()
    for index, step in enumerate(schedule.steps):
        packs = step.action is Action.RECODE and is_packed(step.writes[0].form)
        if not packs and step.count_word == -1:
            continue
        if not packs or not 0 <= step.count_word < schedule.num_counts:
            words = f"word {step.count_word} of {schedule.num_counts}"
            raise ScheduleError(f"step {index}, {schedule.step_name(index)}, counts in {words}")
        if step.count_word in counted:
            text = f"counts in word {step.count_word}, which has the count of another code"
            raise ScheduleError(f"step {index}, {schedule.step_name(index)}, {text}")
        counted.add(step.count_word)


def check_updates(schedule: Schedule, clocks: Sequence[tuple[int, ...]]) -> None:
    """Check that launches which update parameters start after all copies of the file have ended.

    `clocks` have by step, and by lane, the last step that has ended before it starts.
    """
    last = {step.lane: index for index, step in enumerate(schedule.steps)}
    ends = {lane: last[lane] for lane in (Lane.FILE_WRITE, Lane.FILE_READ) if lane in last}
    for index, step in enumerate(schedule.steps if ends else ()):
        if step.action is not Action.LAUNCH:
            continue
        if schedule.graph.passes[step.pass_index].changes_parameters:
            for lane, end in ends.items():
                if clocks[index][lane] < end:
                    name, copy = schedule.step_name(index), schedule.step_name(end)
                    raise ScheduleError(
                        f"step {index}, {name}, updates parameters before step {end}, {copy}, "
                        "which may fail, has ended"
                    )


def copy_problem(graph: Graph, step: Step) -> str | None:
    """Why a step is no copy of whole sections; None if it is one."""
    if len(step.reads) != 1 or len(step.writes) != 1:
        return f"copies {len(step.reads)} operands to {len(step.writes)}"
    (source,), (target,) = step.reads, step.writes
    name = f"copies {source.buffer} [{source.start}, {source.stop})"
    if ROUTES.get(step.lane) != (source.space, target.space):
        route = f"from {source.space.name.lower()} to {target.space.name.lower()}"
        return f"{name} {route} on the {lane_name(step.lane)} lane"
    if source.form != target.form:
        return f"{name} from {source.form} to {target.form}"
    if source.form.tail:
        return f"{name}, the {source.form}, which stays in the slab"
    if Space.FILE in (source.space, target.space):
        for each in (source, target):
            if each.offset % FILE_ALIGNMENT:
                where = f"byte {each.offset} of the {each.space.name.lower()}"
                return f"{name} at {where}, which is no multiple of {FILE_ALIGNMENT}"
    return _section_problem(graph, step, name)


def recode_problem(graph: Graph, step: Step) -> str | None:
    """Why a step is no recode of whole sections; None if it is one."""
    if not step.reads or not step.writes:
        return f"recodes {len(step.reads)} operands to {len(step.writes)}"
    source, target = step.reads[0], step.writes[0]
    name = f"recodes {source.buffer} [{source.start}, {source.stop})"
    route = RECODE_ROUTES.get(step.lane)
    if route is None:
        return f"{name} on the {lane_name(step.lane)} lane"
    if (source.space, target.space) != route:
        where = f"from {source.space.name.lower()} to {target.space.name.lower()}"
        return f"{name} {where} on the {lane_name(step.lane)} lane"
    straight = step.lane is not Lane.COMPUTE
    if straight and (source.form != RAW or is_packed(target.form)):
        return f"{name} from {source.form} to {target.form} on the {lane_name(step.lane)} lane"
    encodes = source.form == RAW
    if encodes == (target.form == RAW) or source.form.tail or target.form.tail:
        return f"{name} from {source.form} to {target.form}"
    if not gives(source.form, Need.VALUES):
        return f"{name} from {source.form}, which lacks its values"
    buffer, code = graph.buffers[source.buffer], target.form if encodes else source.form
    if codec_of(code).by_section and step.stop - step.start > buffer.section:
        return f"{name} with one code of {code} for sections of {buffer.section} rows"
    raws, codes = (step.reads, step.writes) if encodes else (step.writes, step.reads)
    return _tail_problem(graph, raws, codes, name) or _section_problem(graph, step, name)


def _tail_problem(
    graph: Graph, raws: tuple[Operand, ...], codes: tuple[Operand, ...], name: str
) -> str | None:
    """Why a recode lacks the tail of its code, or has one that is not; None if all is well."""
    tail = tail_of(graph.buffers[codes[0].buffer], codes[0].form)
    if len(raws) != 1 or len(codes) != (1 if tail is None else 2):
        return f"{name} with {len(raws)} raw operands and {len(codes)} of its code"
    if tail is not None:
        expected = codes[0]._replace(
            space=Space.SLAB, offset=codes[1].offset, nbytes=codes[1].nbytes, form=tail
        )
        if codes[1] != expected:
            found = f"{codes[1].form} of {codes[1].buffer} [{codes[1].start}, {codes[1].stop})"
            return f"{name} with the {found} in the {codes[1].space.name.lower()} as its tail"
    return None


def gives(form: Form, need: Need) -> bool:
    """True if a form tells what a use needs."""
    return form == RAW or codec_of(form).gives in (need, Need.VALUES)


def facts_lacking(graph: Graph, code: Operand, channels: ChannelRange) -> str:
    """What a code leaves out, but no pass says of the values of these channels; "" if all is said.

    The caller's values may be any.
    """
    buffer, asks = graph.buffers[code.buffer], codec_of(code.form).asks
    pass_ = None if channels.producer == CALLER else graph.passes[channels.producer]
    known = frozenset[Fact]()
    for use, facts in zip(pass_.writes, pass_.facts, strict=False) if pass_ else ():
        start, stop = span(use.channels, buffer) if use.buffer == buffer.name else (0, 0)
        if start <= channels.start and channels.stop <= stop:
            known = facts
    return " and ".join(sorted(fact.value for fact in asks - known))


def _section_problem(graph: Graph, step: Step, name: str) -> str | None:
    """Why a step does not move whole sections to the same sections; None if it does."""
    source, target = step.reads[0], step.writes[0]
    buffer = graph.buffers[source.buffer]
    if (source.buffer, source.start, source.stop) != (target.buffer, target.start, target.stop):
        return f"{name} to {target.buffer} [{target.start}, {target.stop})"
    if (source.start, source.stop) != (step.start, step.stop):
        return f"{name} as rows [{step.start}, {step.stop})"
    if source.start % buffer.section or (
        source.stop % buffer.section and source.stop != buffer.rows
    ):
        return f"{name}, which cuts a section of {buffer.section} rows"
    return None
