"""Due bridges: a plan's bridges by section, and the launches behind which codes are encoded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ...graph import RAW, Form, Graph, Need, Use, codec_of, is_packed
from ..ir.plan import HOST, Bridge, Plan
from .program import ProgramLaunch

Section: TypeAlias = tuple[str, int]
Bridges: TypeAlias = Mapping[Section, list[Bridge]]  # to come, the next one last


def by_section(plan: Plan, *, coded: bool) -> dict[Section, list[Bridge]]:
    """The bridges of each section, raw or coded, the next one last."""
    found: dict[Section, list[Bridge]] = {}
    for bridge in sorted(plan.bridges, key=lambda each: each.needed_by, reverse=True):
        if (bridge.form != RAW) is coded:
            for section in range(bridge.first, bridge.first + bridge.count):
                found.setdefault((bridge.buffer, section), []).append(bridge)
    return found


def may_be_straight(bridge: Bridge) -> bool:
    """True if a kernel can encode the sections of a bridge straight to its tier."""
    return bridge.form != RAW and not is_packed(bridge.form) and bridge.tier == HOST


def due_raw(bridges: Bridges, section: Section, slot: int) -> Bridge | None:
    """The bridge of raw values that ends with a use of the section in this slot."""
    of_section = bridges.get(section)
    return of_section[-1] if of_section and slot >= of_section[-1].needed_by else None


def due_code(bridges: Bridges, section: Section, slot: int, use: Use) -> Bridge | None:
    """The bridge of a code that ends with a use in this slot that can read the code."""
    return _first(bridges, section, slot, lambda form: form in use.forms)


def due_decode(bridges: Bridges, section: Section, slot: int, use: Use) -> Bridge | None:
    """The bridge of a code that ends with a use in this slot before which it is decoded."""
    return _first(bridges, section, slot, lambda form: _is_decoded_for(form, use))


def _is_decoded_for(form: Form, use: Use) -> bool:
    codec = codec_of(form)
    suits = codec.exact or use.need is Need.VALUES  # rounded values tell no more than values
    return suits and form not in use.forms and codec.gives is Need.VALUES


def _first(
    bridges: Bridges, section: Section, slot: int, suits: Callable[[Form], bool]
) -> Bridge | None:
    due = (each for each in reversed(bridges.get(section, ())) if slot >= each.needed_by)
    return next((each for each in due if suits(each.form)), None)


def used_sections(graph: Graph, launch: ProgramLaunch, use: Use) -> tuple[int, int]:
    """The first section that a launch uses, and the one behind the last."""
    buffer = graph.buffers[use.buffer]
    start, stop = use.rows(launch.start, launch.stop, buffer)
    return start // buffer.section, -(-stop // buffer.section)


def last_launches_before_codes(
    graph: Graph, plan: Plan, launches: Sequence[ProgramLaunch]
) -> dict[int, list[tuple[int, Bridge]]]:
    """By launch, the sections of which it is the last use before their code, with the bridge.

    A code that is encoded straight to the host is none of the launches'.
    """
    starting: dict[int, list[Bridge]] = {}
    for bridge in plan.bridges:
        if bridge.form != RAW and not bridge.zero_copy:
            starting.setdefault(bridge.after, []).append(bridge)
    last: dict[tuple[int, Bridge], int] = {}
    for number, launch in enumerate(launches if starting else ()):
        for bridge in starting.get(launch.slot, ()):
            pass_ = graph.passes[launch.pass_index]
            for use in (*pass_.reads, *pass_.writes):
                if use.buffer == bridge.buffer:
                    covered = range(bridge.first, bridge.first + bridge.count)
                    for section in range(*used_sections(graph, launch, use)):
                        if section in covered:
                            last[section, bridge] = number
    found: dict[int, list[tuple[int, Bridge]]] = {}
    for coded, number in last.items():
        found.setdefault(number, []).append(coded)
    return found


def runs_of(coded: Sequence[tuple[int, Form]]) -> Iterator[tuple[list[int], Form]]:
    """Neighbouring sections with the same form, each alone if it has a code of its own."""
    run: list[int] = []
    form = RAW
    for section, its_form in coded:
        alone = codec_of(its_form).by_section
        if run and (alone or section != run[-1] + 1 or its_form != form):
            yield run, form
            run = []
        run.append(section)
        form = its_form
    if run:
        yield run, form
