"""Schedules by hand in which a map rests in a lossy code, in orders that are right and wrong."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from tests.support.schedules.maker import ScheduleMaker, buffer, graph_of, launchable
from tvdnn.graph import BITS, FP8, RAW, TF32, Direction, Fact, Form, Graph, Kind, Need, Use
from tvdnn.planner.ir.schedule import Schedule

BATCH, WIDTH, SECTION = 8, 16, 4
NBYTES = BATCH * WIDTH * 4
PLACES = {name: number * NBYTES for number, name in enumerate("xmyzgh")}
CODES = {FP8: 6 * NBYTES, BITS: 7 * NBYTES, TF32: 8 * NBYTES}
ARENA_NBYTES = 16 * NBYTES
RIGHT = ("make", "use", "round", "bits", "square", "decode", "weigh", "mask")


def rounded_graph(outputs: tuple[str, ...] = ("h",)) -> Graph:
    """`make` writes m, and may leave a lossy code. `use` reads m in forward.

    Backward has `weigh`, which reads values of m, and `mask`, which reads signs.
    """
    kinds = {"x": Kind.INPUT, "g": Kind.GRAD, "h": Kind.GRAD}
    facts = frozenset({Fact.NOT_NEGATIVE, Fact.TF32})
    signs = Use("m", need=Need.SIGN, forms=(BITS,))
    back = Direction.BACKWARD
    passes = [
        replace(
            launchable("make", BATCH, SECTION, (Use("x"),), (Use("m", also=(FP8,)),)),
            facts=(facts,),
        ),
        launchable("use", BATCH, SECTION, (Use("m"),), (Use("y"),)),
        launchable("square", BATCH, SECTION, (Use("y"),), (Use("z"),)),
        launchable("weigh", BATCH, SECTION, (Use("m"), Use("z")), (Use("g"),), back),
        replace(
            launchable("mask", BATCH, SECTION, (signs, Use("g")), (Use("h"),), back),
            form_nbytes={("m", BITS): NBYTES / 32 - NBYTES},
        ),
    ]
    maps = [buffer(name, BATCH, WIDTH, SECTION, kinds.get(name, Kind.MAP)) for name in PLACES]
    maps = [replace(each, facts=facts) if each.name == "m" else each for each in maps]
    return graph_of(maps, passes, ("x",), outputs)


def rounded_schedule(*order: str, outputs: tuple[str, ...] = ("h",)) -> Schedule:
    """The steps of `order`, each on all rows. No two buffers or forms share bytes."""
    maker = ScheduleMaker(rounded_graph(outputs), arena_nbytes=ARENA_NBYTES, slab_nbytes=NBYTES)
    for name, offset in PLACES.items():
        maker.place(name, offset)
    for form, offset in CODES.items():
        maker.place("m", offset, form=form)
    for number, name in enumerate(order):
        STEPS[name](maker, (9 + number % 6) * NBYTES)
    schedule = maker.build()
    used = tuple(each for each in schedule.residencies if each.steps)
    return replace(schedule, residencies=used)


def _launch(name: str, maker: ScheduleMaker, _: int, **how: bool) -> None:
    maker.launch(name, 0, BATCH, (("m", BITS),) if name == "mask" else (), **how)


def _mask_by_values(maker: ScheduleMaker, _: int) -> None:
    maker.launch("mask", 0, BATCH)


def _make_again(maker: ScheduleMaker, offset: int) -> None:
    maker.place("m", offset)
    maker.launch("make", 0, BATCH, recompute=True)


def _make_and_round(maker: ScheduleMaker, offset: int, *, recompute: bool) -> None:
    maker.place("m", offset)
    maker.launch("make", 0, BATCH, (("m", FP8),), recompute=recompute)


def _encode(form: Form, maker: ScheduleMaker, _: int) -> None:
    for start in range(0, BATCH, SECTION):
        maker.recode("m", start, start + SECTION, RAW, form)


def _decode(form: Form, maker: ScheduleMaker, offset: int, rows: int = BATCH) -> None:
    """The values lie at a new place. Of a map decoded in part, all other rows stay as they were."""
    sections = range(rows // SECTION)
    maker.place("m", offset, sections)
    for section in sections:
        start = section * SECTION
        maker.recode("m", start, start + SECTION, form, RAW)


def _there_and_back(maker: ScheduleMaker, offset: int) -> None:
    """Raw values go to the host and return."""
    half = NBYTES // 2
    for section in range(BATCH // SECTION):
        maker.offload("m", section, section * half)
    for section in range(BATCH // SECTION):
        maker.prefetch("m", section, section * half, offset + section * half)


def _mask_by_section(maker: ScheduleMaker, _: int) -> None:
    for start in range(0, BATCH, SECTION):
        maker.launch("mask", start, start + SECTION)


STEPS: Mapping[str, Callable[[ScheduleMaker, int], None]] = {
    **{name: partial(_launch, name) for name in ("make", "use", "square", "weigh", "mask")},
    "mask by values": _mask_by_values,
    "mask by section": _mask_by_section,
    "use again": partial(_launch, "use", recompute=True),
    "make again": _make_again,
    "make and round": partial(_make_and_round, recompute=False),
    "make again and round": partial(_make_and_round, recompute=True),
    "round": partial(_encode, FP8),
    "bits": partial(_encode, BITS),
    "tf32": partial(_encode, TF32),
    "decode": partial(_decode, FP8),
    "decode half": partial(_decode, FP8, rows=SECTION),
    "decode tf32": partial(_decode, TF32),
    "away": _there_and_back,
}
