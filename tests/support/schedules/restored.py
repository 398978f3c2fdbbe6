"""Schedules by hand in which a map rests in a code over a gap, and is decoded for its last read."""

from dataclasses import replace

from tests.support.schedules.maker import ScheduleMaker, buffer, graph_of, launchable
from tvdnn.graph import RAW, TF32, Direction, Fact, Form, Graph, Kind, Use, in_form
from tvdnn.planner.ir.plan import Bridge
from tvdnn.planner.ir.schedule import Schedule

BATCH, WIDTH, SECTION = 7, 16, 2  # the last section is short
SECTIONS = 4
AWAY = 2  # sections whose code is on the host meanwhile
MAP_NBYTES = BATCH * WIDTH * 4
PITCH = 512  # bytes between codes


def restored_graph() -> Graph:
    """`make` writes m, `use` and `square` make z of it, and `weigh` reads both."""
    names = {"x": Kind.INPUT, "m": Kind.MAP, "y": Kind.MAP, "z": Kind.MAP, "g": Kind.GRAD}
    facts = frozenset({Fact.NOT_NEGATIVE, Fact.TF32})
    make = launchable("make", BATCH, SECTION, (Use("x"),), (Use("m"),))
    passes = [
        replace(make, facts=(facts,)),
        launchable("use", BATCH, SECTION, (Use("m"),), (Use("y"),)),
        launchable("square", BATCH, SECTION, (Use("y"),), (Use("z"),)),
        launchable("weigh", BATCH, SECTION, (Use("m"), Use("z")), (Use("g"),), Direction.BACKWARD),
    ]
    buffers = [buffer(name, BATCH, WIDTH, SECTION, kind) for name, kind in names.items()]
    buffers[1] = replace(buffers[1], facts=facts)
    return graph_of(buffers, passes, ("x",), ("g",))


def restored_schedule(form: Form = TF32) -> Schedule:
    """A step whose `z` takes the bytes of `m`. The codes of the first sections leave the device.

    Tails are behind them on the host.
    """
    graph = restored_graph()
    code = in_form(graph.buffers["m"], form)
    codes = 4 * MAP_NBYTES
    back, tails = codes + SECTIONS * PITCH, AWAY * PITCH
    maker = ScheduleMaker(
        graph, arena_nbytes=back + AWAY * PITCH, slab_nbytes=tails + SECTIONS * PITCH
    )
    for number, name in enumerate(("x", "m", "y")):
        maker.place(name, number * MAP_NBYTES)
    for section in range(SECTIONS):
        maker.place("m", codes + section * PITCH, (section,), form)
    for start in (0, 4):
        stop = min(BATCH, start + 4)
        maker.launch("make", start, stop)
        maker.launch("use", start, stop)
        for section in code.sections_of(start, stop):
            maker.recode("m", *code.bounds(section), RAW, form, tails + section * PITCH)
    for section in range(AWAY):
        maker.offload("m", section, section * PITCH, form)
    maker.place("z", MAP_NBYTES)
    maker.launch("square", 0, BATCH)
    for section in range(AWAY):
        maker.prefetch("m", section, section * PITCH, back + section * PITCH, form)
    maker.place("m", 3 * MAP_NBYTES)
    maker.place("g", 0)
    for start in (0, 4):
        stop = min(BATCH, start + 4)
        for section in code.sections_of(start, stop):
            maker.recode("m", *code.bounds(section), form, RAW, tails + section * PITCH)
        maker.launch("weigh", start, stop)
    maker.bridges.append(Bridge("m", 0, AWAY, 1, 3, 3, form))
    maker.bridges.append(Bridge("m", AWAY, SECTIONS - AWAY, 1, 3, 3, form, None))
    return maker.build()
