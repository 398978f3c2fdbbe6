"""Schedules by hand in which a map rests as sign bits over a gap: three ways to the same values."""

from dataclasses import replace
from enum import Enum

from tests.support.schedules.maker import ScheduleMaker, buffer, graph_of, launchable
from tvdnn.graph import BITS, RAW, Direction, Graph, Kind, Need, Use
from tvdnn.planner.ir.plan import Bridge
from tvdnn.planner.ir.schedule import Schedule

BATCH, WIDTH, SECTION = 8, 16, 2
CODE = (("m", BITS),)
MAP_NBYTES = BATCH * WIDTH * 4
CODE_NBYTES = BATCH * WIDTH // 8


class Rest(Enum):
    """How the map `m` gets over its gap."""

    STAYS = "raw"
    LEFT = "as the code that its pass leaves"
    RECODED = "as a code that two recodes make"
    AWAY = "as a code, half of which is on the host"


def coded_graph() -> Graph:
    """`make` writes m, `use` reads it, and then `mask` takes its signs alone."""
    names = {"x": Kind.INPUT, "m": Kind.MAP, "y": Kind.MAP, "z": Kind.MAP, "g": Kind.GRAD}
    back = Direction.BACKWARD
    signs = Use("m", need=Need.SIGN, forms=(BITS,))
    make = launchable("make", BATCH, SECTION, (Use("x"),), (Use("m", also=(BITS,)),))
    mask = launchable("mask", BATCH, SECTION, (signs, Use("z")), (Use("g"),), back)
    saved = float(CODE_NBYTES - MAP_NBYTES)
    passes = [
        replace(make, nbytes=2 * MAP_NBYTES, form_nbytes={("m", BITS): float(CODE_NBYTES)}),
        launchable("use", BATCH, SECTION, (Use("m"),), (Use("y"),)),
        launchable("square", BATCH, SECTION, (Use("y"),), (Use("z"),)),
        replace(mask, nbytes=3 * MAP_NBYTES, form_nbytes={("m", BITS): saved}),
    ]
    buffers = [buffer(name, BATCH, WIDTH, SECTION, kind) for name, kind in names.items()]
    return graph_of(buffers, passes, ("x",), ("g",))


def coded_schedule(rest: Rest) -> Schedule:
    """A step whose `z` takes the bytes of `m`, unless that stays."""
    maker = ScheduleMaker(coded_graph(), arena_nbytes=5 * MAP_NBYTES, slab_nbytes=CODE_NBYTES)
    for number, name in enumerate(("x", "m", "y")):
        maker.place(name, number * MAP_NBYTES)
    code = 3 * MAP_NBYTES
    if rest is not Rest.STAYS:
        maker.place("m", code, form=BITS)
    for start in (0, 4):
        maker.launch("make", start, start + 4, CODE if rest is Rest.LEFT else ())
        maker.launch("use", start, start + 4)
        if rest in (Rest.RECODED, Rest.AWAY):
            maker.recode("m", start, start + 4, RAW, BITS)
    if rest is Rest.AWAY:
        for section in (0, 1):
            maker.offload("m", section, section * CODE_NBYTES // 4, BITS)
    maker.place("z", (3 if rest is Rest.STAYS else 1) * MAP_NBYTES)
    maker.launch("square", 0, BATCH)
    if rest is Rest.AWAY:
        for section in (0, 1):
            slab = section * CODE_NBYTES // 4
            maker.prefetch("m", section, slab, code + section * CODE_NBYTES // 4, BITS)
    maker.place("g", 4 * MAP_NBYTES)
    for start in (0, 4):
        maker.launch("mask", start, start + 4, () if rest is Rest.STAYS else CODE)
    if rest is Rest.AWAY:
        maker.bridges.append(Bridge("m", 0, 2, 1, 3, 3, BITS))
        maker.bridges.append(Bridge("m", 2, 2, 1, 3, 3, BITS, None))
    return maker.build()
