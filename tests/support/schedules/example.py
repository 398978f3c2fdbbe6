"""A schedule by hand with offloads, changes in place and partial sums."""

from tests.support.schedules.maker import FIXED_NBYTES, ScheduleMaker, buffer, graph_of, launchable
from tvdnn.graph import Direction, Graph, Kind, Use
from tvdnn.planner.ir.schedule import Schedule


def example_schedule(*, partial_apart: bool = True) -> Schedule:
    """A step of two convolutions with a map offloaded and back; 8 rows in units of 2.

    The map `a` leaves for the slab and returns over `x`, its bytes go to `gb`; `a` and `gb` are
    changed in place; partial sums share two places, or with `partial_apart` lie side by side.
    """
    maker = ScheduleMaker(_example_graph(), arena_nbytes=2560, slab_nbytes=512)
    maker.place("x", 0)
    maker.place("w", 512)
    maker.launch("pack", 0, 8)
    maker.place("a", 1024)
    maker.place("b", 1536)
    for start in (0, 4):
        maker.launch("conv", start, start + 4)
        maker.launch("relu", start, start + 4)
    for section in range(4):
        maker.offload("a", section, 128 * section)
    for start in (0, 4):
        maker.launch("conv2", start, start + 4)
    maker.place("loss", 2048)
    for start in (0, 4):
        maker.launch("loss", start, start + 4)
    maker.place("gb", 1024)
    maker.launch("loss_grad", 0, 8)
    maker.place("gw", 2112)
    for section in range(4):
        maker.prefetch("a", section, 128 * section, 128 * section)
        partial = 2176 + 64 * (section if partial_apart else section % 2)
        maker.place("partial", partial, (section,))
        maker.launch("grad_weight", 2 * section, 2 * section + 2)
        maker.launch("relu_grad", 2 * section, 2 * section + 2)
        maker.launch("sum", 2 * section, 2 * section + 2)
    maker.launch("update", 0, 8)
    return maker.build(budget=2560 + FIXED_NBYTES, host_budget=512)


def _example_graph() -> Graph:
    maps = [buffer(name, 8, 16, 2) for name in ("a", "b")]
    rest = [
        buffer("x", 8, 16, 2, Kind.INPUT),
        buffer("gb", 8, 16, 2, Kind.GRAD),
        buffer("w", 1, 16, 1, Kind.WEIGHT),
        buffer("loss", 1, 16, 1, Kind.AUX),
        buffer("partial", 4, 16, 1, Kind.PARTIAL),
        buffer("gw", 1, 16, 1, Kind.PARAM_GRAD),
    ]
    whole = {name: Use(name, whole=True) for name in ("w", "loss", "gw")}
    a, b, gb, partial = Use("a"), Use("b"), Use("gb"), Use("partial", per=2)
    back = Direction.BACKWARD
    passes = [
        launchable("pack", 8, 8, (), (whole["w"],), params=("weight",)),
        launchable("conv", 8, 2, (Use("x"), whole["w"]), (a,)),
        launchable("relu", 8, 2, (a,), (a,)),
        launchable("conv2", 8, 2, (a, whole["w"]), (b,)),
        launchable("loss", 8, 2, (b,), (whole["loss"],), reduction=True),
        launchable("loss_grad", 8, 2, (b, whole["loss"]), (gb,), back),
        launchable("grad_weight", 8, 2, (a, gb), (partial,), back),
        launchable("relu_grad", 8, 2, (a, gb), (gb,), back),
        launchable("sum", 8, 2, (partial,), (whole["gw"],), back, reduction=True),
        launchable("update", 8, 8, (whole["gw"],), (), Direction.UPDATE, updates=("weight",)),
    ]
    return graph_of((*maps, *rest), passes, ("x",), ("loss",))
