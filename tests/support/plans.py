"""Random legal plans: orders, section-major segments, transfers and recompute.

An order of the passes is any that keeps what each depends on.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvdnn.graph import (
    CODECS,
    RAW,
    SHARES,
    TF32,
    Buffer,
    Direction,
    Fact,
    Form,
    Graph,
    Kind,
    Need,
    Pass,
    Use,
    is_packed,
    must_be_separate,
)
from tvdnn.planner.ir.plan import FILE, HOST, Bridge, Plan, Segment, Slot

MOVED_KINDS = (Kind.INPUT, Kind.MAP, Kind.GRAD, Kind.AUX)


@dataclass(frozen=True, slots=True)
class Turn:
    """One occurrence of a pass, and the earlier turns that must have run before it."""

    pass_index: int
    recompute: bool
    after: frozenset[int]


def random_plan(graph: Graph, rng: random.Random, tiers: Sequence[str | None] = (HOST,)) -> Plan:
    """A plan of `graph` drawn from all that the data model can say of it.

    What leaves the device goes to one of the tiers. Where one is the file, updates come last.
    """
    turns = ordered(graph, recomputed(graph, rng))
    if FILE in tiers:
        turns = _with_updates_last(graph, turns)
    segments = tuple(_random_segments(graph, turns, rng))
    transfers = list(_random_transfers(graph, segments, rng))
    codes = list(_random_codes(graph, segments, rng))
    restorable = _random_restored(graph, segments, rng)
    restored = [bridge for bridge, _ in restorable]
    bridges = (*_apart_from(restored, transfers), *codes, *restored)
    drawn = random.Random()
    drawn.setstate(rng.getstate())
    in_tf32 = [bridge for bridge, forms in restorable if TF32 in forms]
    bridges = tuple(some_straight(graph, segments, bridges, drawn, in_tf32))
    if len(tiers) > 1:
        bridges = tuple(
            replace(each, tier=rng.choice(tiers)) if each.tier and not each.zero_copy else each
            for each in bridges
        )
    return Plan("random", segments, bridges)


def _with_updates_last(graph: Graph, turns: Sequence[Turn]) -> list[Turn]:
    """The turns, those that change parameters behind all others."""
    passes = [graph.passes[turn.pass_index] for turn in turns]
    changing = {number for number, each in enumerate(passes) if each.changes_parameters}
    others = frozenset(range(len(turns))) - changing
    return [
        replace(each, after=each.after | others) if number in changing else each
        for number, each in enumerate(turns)
    ]


def recomputed(graph: Graph, rng: random.Random) -> list[Slot]:
    """The passes in program order, some maps made again right before backward reads them."""
    slots = [Slot(index) for index in range(len(graph.passes))]
    for name in reversed([name for name in graph.buffers if _recomputable(graph, name)]):
        if rng.random() < 0.3:
            slots = _with_recompute(graph, slots, name)
    return slots


def _recomputable(graph: Graph, name: str) -> bool:
    writers = [graph.passes[index] for index in _writers(graph, name)]
    forward = [p for p in writers if p.direction is Direction.FORWARD]
    whole = any(use.whole for p in forward for use in p.writes)
    return bool(forward) and graph.buffers[name].kind is Kind.MAP and not whole


def _writers(graph: Graph, name: str) -> list[int]:
    return [i for i, p in enumerate(graph.passes) if any(use.buffer == name for use in p.writes)]


def _with_recompute(graph: Graph, slots: list[Slot], name: str) -> list[Slot]:
    """The slots with the forward passes that write `name` again before its first later reader.

    As they are where a parameter of these has been updated by then.
    """
    makers = [
        index
        for index in _writers(graph, name)
        if graph.passes[index].direction is Direction.FORWARD
    ]
    for place, slot in enumerate(slots):
        backward = slot.recompute or graph.passes[slot.pass_index].direction is Direction.BACKWARD
        if backward and any(use.buffer == name for use in graph.passes[slot.pass_index].reads):
            updated = {n for each in slots[:place] for n in graph.passes[each.pass_index].updates}
            if any(param in updated for index in makers for param in graph.passes[index].params):
                return slots
            again = [Slot(index, recompute=True) for index in makers]
            return [*slots[:place], *again, *slots[place:]]
    return slots


def ordered(graph: Graph, slots: Iterable[Slot]) -> list[Turn]:
    """The slots' passes as turns, each with the turns that it must follow."""
    turns: list[Turn] = []
    writers: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for number, slot in enumerate(slots):
        reads, writes = _touches(graph.passes[slot.pass_index], recompute=slot.recompute)
        after = {writers[name] for name in (*reads, *writes) if name in writers}
        after |= {reader for name in writes for reader in readers.get(name, ())}
        turns.append(Turn(slot.pass_index, slot.recompute, frozenset(after)))
        for name in reads:
            readers.setdefault(name, []).append(number)
        for name in writes:
            writers[name], readers[name] = number, []
    return turns


def _touches(pass_: Pass, *, recompute: bool) -> tuple[set[str], set[str]]:
    """Buffers and (as "param NAME") parameters that a pass reads and writes."""
    reads = {use.buffer for use in pass_.reads} | {f"param {name}" for name in pass_.params if name}
    writes = {use.buffer for use in pass_.writes}
    if not recompute:
        writes |= {f"param {name}" for name in pass_.updates}
    return reads, writes


def _random_segments(graph: Graph, turns: Sequence[Turn], rng: random.Random) -> Iterable[Segment]:
    """Turns in a random legal order, cut into random legal segments."""
    todo = set(range(len(turns)))
    while todo:
        ready = sorted(n for n in todo if not turns[n].after & todo)
        members = [rng.choice(ready[:2])]
        todo.discard(members[0])
        while rng.random() < 0.7:
            ready = [n for n in sorted(todo) if not turns[n].after & todo]
            joining = [n for n in ready if _joins(graph, turns, members, n)]
            if not joining:
                break
            members.append(rng.choice(joining[:2]))
            todo.discard(members[-1])
        yield _segment(graph, [turns[n] for n in members], rng)


def _joins(graph: Graph, turns: Sequence[Turn], members: Sequence[int], number: int) -> bool:
    """Whether the turn may go through each section together with `members`."""
    passes = [graph.passes[turns[n].pass_index] for n in (*members, number)]
    if not all(p.splittable for p in passes):
        return False
    *_, last = passes
    return not any(_meet_whole(p, last) or must_be_separate(p, last) for p in passes[:-1])


def _meet_whole(first: Pass, second: Pass) -> bool:
    """Whether one writes, and the other touches, all rows of a buffer at once."""
    ours, theirs = (_whole(p.writes) for p in (first, second))
    touched = {use.buffer for use in (*second.reads, *second.writes)}
    return bool(ours & touched or theirs & {use.buffer for use in (*first.reads, *first.writes)})


def _whole(uses: Iterable[Use]) -> set[str]:
    return {use.buffer for use in uses if use.whole}


def _segment(graph: Graph, turns: Sequence[Turn], rng: random.Random) -> Segment:
    passes = [graph.passes[turn.pass_index] for turn in turns]
    unit = max(p.unit for p in passes)
    block = 0 if unit >= passes[0].domain else unit * rng.choice((0, 1, 1, 2, 3))
    if any(p.least_sums for p in passes) and rng.random() < 0.5:
        block = 0
    slots = [
        Slot(turn.pass_index, p.unit * rng.choice((0, 0, 1, 2, 3)), turn.recompute)
        for turn, p in zip(turns, passes, strict=True)
    ]
    if block == 0:
        slots = [_drawn_sums(graph, slot, rng) for slot in slots]
    return Segment(tuple(slots), block)


def _drawn_sums(graph: Graph, slot: Slot, rng: random.Random) -> Slot:
    """The slot, in two of three cases with fewer rows of a weight gradient's sums in one launch."""
    pass_ = graph.passes[slot.pass_index]
    if pass_.least_sums == 0 or rng.random() < 1 / 3:
        return slot
    step, rows = pass_.least_sums - 1, graph.buffers[pass_.writes[0].buffer].rows
    return replace(slot, run=0, sums=rng.randrange(pass_.least_sums, rows, step))


def _random_transfers(
    graph: Graph, segments: Sequence[Segment], rng: random.Random
) -> Iterable[Bridge]:
    uses = _uses(graph, segments)
    for name in sorted(uses):
        buffer = graph.buffers[name]
        for (leave, _), (back, fresh) in zip(uses[name], uses[name][1:], strict=False):
            if fresh or rng.random() < 0.6:
                continue
            first = rng.randrange(buffer.num_sections)
            count = rng.randint(1, buffer.num_sections - first)
            back = rng.randint(leave + 1, back)
            yield Bridge(name, first, count, leave, back, earliest_prefetch=rng.randint(0, back))


def _random_codes(
    graph: Graph, segments: Sequence[Segment], rng: random.Random
) -> Iterable[Bridge]:
    """Codes for reads that can take them, left by the last write or encoded behind a later read."""
    slots = [slot for segment in segments for slot in segment.slots]
    since: dict[str, list[int]] = {}  # by buffer, its last write and the reads behind it
    for number, slot in enumerate(slots):
        pass_ = graph.passes[slot.pass_index]
        for use in pass_.reads:
            for form in use.forms:
                if since.get(use.buffer) and rng.random() < 0.7:
                    sections = 0, graph.buffers[use.buffer].num_sections
                    after = rng.choice(since.pop(use.buffer))
                    tier = HOST if rng.random() < 0.3 else None
                    earliest = rng.randint(0, number)
                    yield Bridge(use.buffer, *sections, after, number, earliest, form, tier)
            if use.buffer in since:
                since[use.buffer].append(number)
        since |= {use.buffer: [number] for use in pass_.writes if use.channels is None}


def _random_restored(
    graph: Graph, segments: Sequence[Segment], rng: random.Random
) -> list[tuple[Bridge, list[Form]]]:
    """Codes that are decoded again, each behind a use and before a later read, and fitting forms.

    Blocks read rows of their neighbours before or after these: such buffers stay as they are.
    """
    halo = {use.buffer for pass_ in graph.passes for use in pass_.reads if use.neighbour}
    slots = [slot for segment in segments for slot in segment.slots]
    since: dict[str, tuple[list[Form], list[int]]] = {}  # by buffer, fitting forms and uses
    found = []
    for number, slot in enumerate(slots):
        pass_ = graph.passes[slot.pass_index]
        for name in dict.fromkeys(use.buffer for use in pass_.reads):
            forms, uses = since.get(name, ([], []))
            if forms and rng.random() < 0.5:
                count = graph.buffers[name].num_sections
                first = rng.randrange(count) if rng.random() < 0.5 else 0
                sections = first, rng.randint(1, count - first)
                tier, earliest = rng.choice((None, None, HOST)), rng.randint(0, number)
                places = rng.choice(uses), number, earliest
                form = _drawn(rng.choice(forms), rng)
                found.append((Bridge(name, *sections, *places, form, tier), forms))
                uses.clear()
            uses.append(number)
        for use, facts in zip(pass_.writes, pass_.facts, strict=True):
            buffer = graph.buffers[use.buffer]
            apart = use.channels or use.whole or use.buffer in halo
            forms = [] if apart else _restoring(buffer, facts)
            since[use.buffer] = forms, [number]
    return found


def _restoring(buffer: Buffer, facts: frozenset[Fact]) -> list[Form]:
    """The forms that give the bits of values of these facts back."""
    if buffer.kind not in MOVED_KINDS:
        return []
    codecs = [each for each in CODECS.values() if each.gives is Need.VALUES and each.exact]
    fitting = [each for each in codecs if each.fits(buffer) and each.asks <= facts]
    return [Form(each.name) for each in fitting]


def _drawn(form: Form, rng: random.Random) -> Form:
    """The form, with the capacity of a head that few or many values overflow."""
    return form._replace(share=rng.choice((0, 1, 100, 140, SHARES))) if is_packed(form) else form


def _apart_from(restored: Sequence[Bridge], transfers: Iterable[Bridge]) -> Iterable[Bridge]:
    """The transfers over whose gaps their buffer is not coded to be restored."""
    for each in transfers:
        codes = [other for other in restored if other.buffer == each.buffer]
        if all(each.needed_by <= it.after or each.after >= it.needed_by for it in codes):
            yield each


def some_straight(
    graph: Graph,
    segments: Sequence[Segment],
    bridges: Sequence[Bridge],
    rng: random.Random,
    in_tf32: Sequence[Bridge] = (),
) -> Iterable[Bridge]:
    """The bridges, some of codes encoded straight to the host.

    Those of maps that may rest `in_tf32` become TF32 codes where they have no fixed size.
    """
    slots = [slot for segment in segments for slot in segment.slots]
    used: dict[str, list[int]] = {}
    for number, slot in enumerate(slots):
        for name in graph.passes[slot.pass_index].used_buffers:
            used.setdefault(name, []).append(number)
    for each in bridges:
        form = TF32 if each in in_tf32 else each.form
        fitting = form != RAW and not is_packed(form)
        if fitting and _leaves(graph, used[each.buffer], each, bridges) and rng.random() < 0.6:
            yield replace(each, form=form, tier=HOST, zero_copy=True)
        else:
            yield each


def _leaves(graph: Graph, used: Sequence[int], bridge: Bridge, bridges: Iterable[Bridge]) -> bool:
    """Whether nothing wants a map raw from the start of its bridge to its end.

    A code that does not give the values is for the last use.
    """
    others = [each for each in bridges if each.buffer == bridge.buffer and each is not bridge]
    apart = all(each.needed_by <= bridge.after or each.after >= bridge.needed_by for each in others)
    between = [number for number in used if bridge.after < number < bridge.needed_by]
    gives = CODECS[bridge.form.codec].gives is Need.VALUES
    wanted = bridge.buffer in graph.outputs or used[-1] > bridge.needed_by
    return apart and not between and (gives or not (wanted or others))


def _uses(graph: Graph, segments: Sequence[Segment]) -> Mapping[str, list[tuple[int, bool]]]:
    """The slots that use each buffer that may move, and whether they write it afresh."""
    found: dict[str, list[tuple[int, bool]]] = {}
    slots = [slot for segment in segments for slot in segment.slots]
    for number, slot in enumerate(slots):
        pass_ = graph.passes[slot.pass_index]
        read = {use.buffer for use in pass_.reads}
        names = dict.fromkeys(use.buffer for use in (*pass_.reads, *pass_.writes) if not use.whole)
        for name in names:
            if graph.buffers[name].kind in MOVED_KINDS:
                found.setdefault(name, []).append((number, name not in read))
    return found
