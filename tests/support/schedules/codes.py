"""Schedules by hand with codes that launches leave, that recodes make, and that go to the host."""

from tests.support.schedules.maker import ScheduleMaker, buffer, graph_of, launchable
from tvdnn.graph import BITS, RAW, Direction, Graph, Kind, Need, Use
from tvdnn.planner.ir.schedule import Schedule

BITS_OF_A, BITS_OF_B = (("a", BITS),), (("b", BITS),)
SIGNED = ("g", "c", "sum", "y")  # maps of which one pass can read the bits


def coded_schedule() -> Schedule:
    """A step whose backward reads the signs of two maps; 8 rows in units of 2.

    Of `a` the second pass leaves half of the bits. A recode makes the others. Raw `a` goes to the
    host and returns for its last reads. Recodes make the bits of `b`. The bits go to the host in
    its stead.
    """
    maker = ScheduleMaker(_coded_graph(), arena_nbytes=2688, slab_nbytes=528)
    maker.place("x", 0)
    maker.place("a", 512)
    maker.place("a", 2048, form=BITS)
    for start in (0, 4):
        maker.launch("conv", start, start + 4)
    maker.launch("relu", 0, 4, BITS_OF_A)
    maker.launch("relu", 4, 8)
    maker.place("b", 1024)
    for start in (0, 4):
        maker.launch("conv2", start, start + 4)
    maker.recode("a", 4, 8, RAW, BITS)
    maker.place("c", 1536)
    maker.launch("conv3", 0, 8)
    maker.place("b", 2064, form=BITS)
    for start in (0, 4):
        maker.recode("b", start, start + 4, RAW, BITS)
    for section in range(4):
        maker.offload("a", section, 128 * section)
        maker.offload("b", section, 512 + 4 * section, BITS)
    _backward(maker)
    return maker.build()


def _backward(maker: ScheduleMaker) -> None:
    maker.place("gc", 512)
    maker.launch("loss_grad", 0, 8)
    maker.place("gb", 1024)
    for section in range(4):
        maker.prefetch("b", section, 512 + 4 * section, 2128 + 4 * section, BITS)
    for start in (0, 4):
        maker.launch("mask_b", start, start + 4, BITS_OF_B)
    maker.place("gw", 2064)
    maker.place("ga", 1536)
    for section in range(4):
        rows = 2 * section, 2 * section + 2
        maker.prefetch("a", section, 128 * section, 2176 + 128 * section)
        maker.launch("mask_a", *rows, BITS_OF_A if section else ())
        maker.launch("grad_weight", *rows)


def _coded_graph() -> Graph:
    names = {"x": Kind.INPUT, "gc": Kind.GRAD, "gb": Kind.GRAD, "ga": Kind.GRAD}
    maps = [buffer(name, 8, 16, 2, names.get(name, Kind.MAP)) for name in ("a", "b", "c", *names)]
    x, a, c, gc, gb, ga = (Use(name) for name in ("x", "a", "c", "gc", "gb", "ga"))
    left = {name: Use(name, also=(BITS,)) for name in "ab"}
    signs = {name: Use(name, need=Need.SIGN, forms=(BITS,)) for name in "ab"}
    gw, back = Use("gw", whole=True), Direction.BACKWARD
    passes = [
        launchable("conv", 8, 2, (x,), (left["a"],)),
        launchable("relu", 8, 2, (a,), (left["a"],)),
        launchable("conv2", 8, 2, (a,), (left["b"],)),
        launchable("conv3", 8, 2, (Use("b"),), (c,)),
        launchable("loss_grad", 8, 2, (c,), (gc,), back),
        launchable("mask_b", 8, 2, (gc, signs["b"]), (gb,), back),
        launchable("grad_weight", 8, 2, (a, gb), (gw,), back, reduction=True),
        launchable("mask_a", 8, 2, (gb, signs["a"]), (ga,), back),
    ]
    return graph_of((*maps, buffer("gw", 1, 12, 1, Kind.PARAM_GRAD)), passes, ("x",), ("ga", "gw"))


def joined_schedule() -> Schedule:
    """Two halves. Recodes make bits of a map of two parts, of a sum and of a given gradient.

    Two passes write the parts, each half of the channels. One pass leaves bits of two maps.
    """
    maker = ScheduleMaker(_joined_graph(), arena_nbytes=2208)
    for name, offset in {"x": 0, "c": 512, "sum": 1024, "y": 1088, "z": 1600}.items():
        maker.place(name, offset)
    for name, offset in {"c": 2112, "sum": 2128, "y": 2144, "z": 2160}.items():
        maker.place(name, offset, form=BITS)
    for start in range(0, 8, 2):
        maker.launch("left", start, start + 2)
        maker.launch("right", start, start + 2)
    maker.recode("c", 0, 8, RAW, BITS)
    for start in (0, 4):
        maker.launch("add", start, start + 4)
    maker.recode("sum", 0, 1, RAW, BITS)
    maker.launch("fork", 0, 8, (("y", BITS), ("z", BITS)))
    maker.half()
    maker.place("g", 0)
    maker.place("g", 2176, form=BITS)
    maker.place("gx", 512)
    maker.recode("g", 0, 8, RAW, BITS)
    for start in range(0, 8, 2):
        maker.launch("mask", start, start + 2, tuple((name, BITS) for name in SIGNED))
    return maker.build()


def _joined_graph() -> Graph:
    maps = [buffer(name, 8, 16, 2) for name in ("x", "c", "y", "z", "g", "gx")]
    x, c, total = Use("x"), Use("c"), Use("sum", whole=True)
    left = (Use("y", also=(BITS,)), Use("z", also=(BITS,)))
    signs = [Use(name, name == "sum", need=Need.SIGN, forms=(BITS,)) for name in SIGNED]
    signs += [Use("z", need=Need.SIGN)]
    passes = (
        launchable("left", 8, 2, (x,), (Use("c", channels=(0, 8)),)),
        launchable("right", 8, 2, (x,), (Use("c", channels=(8, 16)),)),
        launchable("add", 8, 2, (c,), (total,), reduction=True),
        launchable("fork", 8, 2, (c,), left),
        launchable("mask", 8, 2, signs, (Use("gx"),), Direction.BACKWARD),
    )
    buffers = (*maps, buffer("sum", 1, 16, 1, Kind.AUX))
    return graph_of(buffers, passes, ("x", "g"), ("y",), 4, ("gx",))
