"""The checker accepts right schedules of every shape and refuses every seeded fault, naming it."""

from dataclasses import replace

import pytest

from tests.support.faults.changes import implied_residencies, rebuilt
from tests.support.faults.harm import assert_no_harm
from tests.support.faults.table import FAULTS, HARMFUL, Fault
from tests.support.schedules.example import example_schedule
from tests.support.schedules.maker import ScheduleMaker, buffer, graph_of, launchable
from tests.support.schedules.order import races
from tvdnn.errors import ScheduleError
from tvdnn.graph import Direction, Graph, Kind, Use
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.verify.check import check

BACK = Direction.BACKWARD
EXAMPLES = (example_schedule(partial_apart=True), example_schedule(partial_apart=False))


def refuse(schedule: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(schedule)


@pytest.mark.parametrize("schedule", EXAMPLES)
def test_accepts_offload_in_place_and_partial_sums(schedule: Schedule) -> None:
    check(schedule)
    assert not races(schedule)
    assert len(schedule.steps) == 31
    assert schedule.offloaded_nbytes == 512


@pytest.mark.parametrize("schedule", EXAMPLES)
def test_implied_residencies_are_those_laid_by_hand(schedule: Schedule) -> None:
    implied = implied_residencies(schedule.graph, schedule.steps)
    assert set(implied) == set(schedule.residencies)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_refuses(fault: Fault) -> None:
    mutants = [fault.seed(schedule, seed) for schedule in EXAMPLES for seed in range(10)]
    assert None not in mutants
    for mutant in mutants:
        with pytest.raises(ScheduleError):
            check(mutant)


@pytest.mark.parametrize("schedule", EXAMPLES)
def test_accepts_nothing_that_the_oracles_see_harm_in(schedule: Schedule) -> None:
    assert_no_harm(schedule, HARMFUL)


def test_names_step_and_race() -> None:
    schedule = EXAMPLES[0]
    steps = tuple(s._replace(waits=()) if i == 13 else s for i, s in enumerate(schedule.steps))
    refuse(
        replace(schedule, steps=steps),
        r"step 13, loss_grad \[0, 8\), writes gb \[0, 8\) at arena byte 1024 without waiting for "
        r"step 5, offload a \[0, 2\), which reads there",
    )


# Two halves


def halves() -> ScheduleMaker:
    """y = f(x); then, from the caller's gy, gw = g(x, gy); gy lies where nothing of x or y does."""
    maps = [buffer(name, 4, 4, 2) for name in ("x", "y", "gy")]
    graph = graph_of(
        (*maps, buffer("gw", 1, 4, 1, Kind.PARAM_GRAD)),
        (
            launchable("f", 4, 2, (Use("x"),), (Use("y"),), params=("weight",)),
            launchable("g", 4, 4, (Use("x"), Use("gy")), (Use("gw", whole=True),), BACK),
        ),
        inputs=("x", "gy"),
        outputs=("y",),
        param_grads=("gw",),
        cut=1,
    )
    maker = ScheduleMaker(graph, arena_nbytes=192)
    maker.place("x", 0)
    maker.place("y", 64)
    maker.launch("f", 0, 4)
    return maker


def with_gradient(maker: ScheduleMaker, *, gy: int, gw: int) -> Schedule:
    """The schedule with the second pass last. Its buffers lie at these bytes."""
    maker.place("gy", gy)
    maker.place("gw", gw)
    maker.launch("g", 0, 4)
    return maker.build()


def test_accepts_two_halves_whose_second_takes_the_outputs_place() -> None:
    maker = halves()
    maker.half()
    check(with_gradient(maker, gy=64, gw=128))


def test_refuses_pass_of_the_wrong_half() -> None:
    maker = halves()
    maker.place("gy", 128)
    maker.place("gw", 64)
    maker.launch("g", 0, 4)
    maker.half()
    refuse(maker.build(), r"step 1, g \[0, 4\), is in the wrong phase")


def test_refuses_given_gradient_over_what_is_still_needed() -> None:
    maker = halves()
    maker.half()
    refuse(
        with_gradient(maker, gy=0, gw=128),
        r"g \[0, 4\), reads x \[0, 4\) at arena byte 0, but gy is there",
    )


def test_refuses_output_overwritten_before_it_is_handed_out() -> None:
    graph = graph_of(
        [buffer(name, 4, 4, 4) for name in ("x", "y", "z")],
        (
            launchable("f", 4, 4, (Use("x"),), (Use("y"),)),
            launchable("g", 4, 4, (Use("x"),), (Use("z"),)),
        ),
        inputs=("x",),
        outputs=("y", "z"),
    )
    maker = ScheduleMaker(graph, arena_nbytes=128)
    maker.place("x", 0)
    maker.place("y", 64)
    maker.launch("f", 0, 4)
    maker.place("z", 64)
    maker.launch("g", 0, 4)
    refuse(maker.build(), r"output y \[0, 4\) at arena byte 64 is handed out, but z is there")


# Inputs, versions, parameters


def chain(*, effects: bool = False, updates: tuple[str, ...] = ()) -> Graph:
    """conv: x -> a; relu: a in place; use: a -> y; late, backward: a, y -> g."""
    a, y = Use("a"), Use("y")
    passes = (
        launchable("conv", 4, 2, (Use("x"),), (a,), effects=effects, updates=updates),
        launchable("relu", 4, 2, (a,), (a,)),
        launchable("use", 4, 2, (a,), (y,)),
        launchable("late", 4, 2, (a, y), (Use("g"),), BACK),
    )
    return graph_of([buffer(name, 4, 4, 2) for name in "xayg"], passes, ("x",), ("g",))


def recomputing(graph: Graph, *again: str) -> Schedule:
    """`a` is thrown away after its forward uses; `again` makes it anew at another address."""
    maker = ScheduleMaker(graph, arena_nbytes=256)
    maker.place("x", 0)
    maker.place("a", 64)
    maker.place("y", 128)
    for name in ("conv", "relu", "use"):
        maker.launch(name, 0, 4)
    maker.place("a", 192)
    maker.place("g", 64)
    for name in again:
        maker.launch(name, 0, 4, recompute=True)
    maker.launch("late", 0, 4)
    return maker.build()


def test_accepts_recompute_at_another_address() -> None:
    check(recomputing(chain(), "conv", "relu"))


def test_refuses_recompute_that_stops_before_the_in_place_pass() -> None:
    schedule = recomputing(chain(), "conv")
    refuse(schedule, "finds it as conv leaves it, not as relu leaves it")


def test_refuses_recompute_of_a_changed_map_in_place() -> None:
    schedule = recomputing(chain(), "conv", "relu", "relu")
    refuse(schedule, "finds it as relu leaves it, not as conv leaves it")


def test_effects_may_be_recomputed_and_updates_may_not() -> None:
    check(recomputing(chain(effects=True, updates=("mean",)), "conv", "relu"))
    schedule = recomputing(chain(updates=("mean",)), "conv", "relu")
    refuse(schedule, "recomputes a pass that changes mean")


def test_refuses_recompute_without_flag_and_flag_without_launch() -> None:
    schedule = recomputing(chain(), "conv", "relu")
    for index, flag, message in ((3, False, "a second time"), (0, True, "no launch before")):
        steps = list(schedule.steps)
        steps[index] = steps[index]._replace(recompute=flag)
        refuse(replace(schedule, steps=tuple(steps)), message)


def test_refuses_input_overwritten_before_its_last_read() -> None:
    maker = ScheduleMaker(chain(), arena_nbytes=256)
    maker.place("x", 0)
    maker.place("a", 64, (0,))
    maker.place("a", 32, (1,))  # over rows [2, 4) of x
    maker.place("y", 128)
    maker.place("g", 192)
    for name in ("conv", "relu", "use", "late"):
        for start in (2, 0) if name == "conv" else (0, 2):
            maker.launch(name, start, start + 2)
    schedule = maker.build()
    refuse(schedule, r"conv \[2, 4\), writes a \[2, 4\) at arena byte 32 over x, which it reads")


def test_refuses_parameter_changed_before_its_last_reader() -> None:
    schedule = EXAMPLES[0]
    passes = list(schedule.graph.passes)
    number = next(i for i, pass_ in enumerate(passes) if pass_.name == "relu_grad")
    passes[number] = replace(passes[number], params=("weight",))
    schedule = replace(schedule, graph=replace(schedule.graph, passes=tuple(passes)))
    check(schedule)
    early = [i for i, s in enumerate(schedule.steps) if s.pass_index == number][-1]
    steps = list(schedule.steps)
    steps.append(steps.pop(early)._replace(waits=steps[-1].waits))
    order = rebuilt(schedule, steps)
    refuse(order, "finds weight as update leaves it, not the caller")


def test_refuses_reader_of_an_unfinished_reduction() -> None:
    schedule = EXAMPLES[0]
    names = [schedule.step_name(i) for i in range(len(schedule.steps))]
    steps = list(schedule.steps)
    last_sum = names.index("sum [6, 8)")
    steps[last_sum], steps[last_sum + 1] = steps[last_sum + 1], steps[last_sum]
    refuse(rebuilt(schedule, steps), "update .* runs before sum is complete")


# Channel ranges


def concat(order: tuple[str, ...], split: int = 2) -> Schedule:
    """left and right write their channels of c, each from x; both is read after."""
    graph = graph_of(
        [buffer("x", 4, 4, 4), buffer("c", 4, 4, 4), buffer("y", 4, 4, 4), buffer("z", 4, 4, 4)],
        (
            launchable("left", 4, 4, (Use("x"),), (Use("c", channels=(0, split)),)),
            launchable("peek", 4, 4, (Use("c", channels=(0, 2)),), (Use("z"),)),
            launchable("right", 4, 4, (Use("x"),), (Use("c", channels=(2, 4)),)),
            launchable("both", 4, 4, (Use("c"),), (Use("y"),)),
        ),
        inputs=("x",),
        outputs=("y", "z"),
    )
    maker = ScheduleMaker(graph, arena_nbytes=256, slab_nbytes=64)
    for number, name in enumerate(("x", "c", "y", "z")):
        maker.place(name, 64 * number)
    for name in order:
        if name == "move":
            maker.offload("c", 0, 0)
            maker.prefetch("c", 0, 0, 64)
        else:
            maker.launch(name, 0, 4)
    return maker.build()


def test_accepts_branches_that_write_their_channels_in_any_order() -> None:
    check(concat(("left", "peek", "right", "both")))
    check(concat(("right", "left", "both", "peek")))
    check(concat(("right", "left", "move", "both", "peek")))
    check(concat(("left", "move", "peek", "right", "both")))


def test_refuses_reader_of_channels_not_written() -> None:
    refuse(concat(("right", "peek", "left", "both")), "peek .* finds it unwritten")
    refuse(concat(("left", "peek", "both", "right")), "both .* finds it as left leaves it")
    refuse(concat(("left", "move", "both", "peek", "right")), "both .* finds it as left leaves it")


def test_refuses_channels_overwritten_by_an_earlier_pass() -> None:
    check(concat(("left", "peek", "right", "both"), split=3))
    refuse(concat(("right", "left", "peek", "both"), split=3), "both .* finds it as left leaves")
