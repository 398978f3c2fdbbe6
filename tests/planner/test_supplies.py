"""Supplies: which passes make a buffer again, and where that is not possible."""

from collections.abc import Sequence

import pytest

from tests.support.schedules.maker import buffer, graph_of, launchable
from tvdnn.graph import Buffer, Direction, Graph, Kind, Pass, Use
from tvdnn.planner.recompute.supplies import Supplies, Supply

BACK, UPDATE = Direction.BACKWARD, Direction.UPDATE
X, A, B, C, GRAD = Use("x"), Use("a"), Use("b"), Use("c"), Use("g")
ROWS, WIDTH, SECTION = 8, 16, 2


def graph_with(passes: Sequence[Pass], outputs: tuple[str, ...] = ("g",)) -> Graph:
    """Passes over maps x (the caller's), a, b, c and w (a copy of weights) and a gradient g."""
    maps: list[Buffer] = [buffer(name, ROWS, WIDTH, SECTION) for name in "abc"]
    maps += [buffer("x", ROWS, WIDTH, SECTION, Kind.INPUT)]
    maps += [buffer("w", 1, WIDTH, 1, Kind.WEIGHT), buffer("g", ROWS, WIDTH, SECTION, Kind.GRAD)]
    return graph_of(maps, passes, ("x",), outputs)


def made(
    name: str, reads: Sequence[Use], writes: Sequence[Use], direction: Direction = Direction.FORWARD
) -> Pass:
    return launchable(name, ROWS, SECTION, reads, writes, direction)


def supply_of(passes: Sequence[Pass], name: str, **options: tuple[str, ...]) -> Supply | None:
    """The supply of a buffer for the last pass."""
    return Supplies(graph_with(passes, **options)).of(name, len(passes) - 1)


def test_a_map_is_made_from_what_its_maker_reads() -> None:
    passes = [made("a", [X], [A]), made("b", [A], [B]), made("g", [A, B], [GRAD], BACK)]
    supplies = Supplies(graph_with(passes))
    assert supplies.of("b", 2) == Supply(frozenset("b"), (1,), (), frozenset("a"))
    assert supplies.of("a", 2) == Supply(frozenset("a"), (0,), (), frozenset("x"))
    assert supplies.of("a", 1) == Supply(frozenset("a"), (0,), (), frozenset("x"))
    assert supplies.of("x", 0) is None


def test_a_write_in_place_runs_behind_the_write_before_it() -> None:
    passes = [made("a", [X], [A]), made("relu", [A], [A]), made("g", [A], [GRAD], BACK)]
    assert supply_of(passes, "a") == Supply(frozenset("a"), (0, 1), (), frozenset("x"))


def test_a_map_that_backward_never_reads_is_made_with_the_one_it_is_read_for() -> None:
    passes = [made("a", [X], [A]), made("pool", [A], [B]), made("g", [B], [GRAD], BACK)]
    assert supply_of(passes, "b") == Supply(frozenset("ab"), (0, 1), (), frozenset("x"))
    passes = [*passes[:2], made("g", [A, B], [GRAD], BACK)]
    assert supply_of(passes, "b") == Supply(frozenset("b"), (1,), (), frozenset("a"))


def test_copies_of_weights_are_made_first() -> None:
    weight = Use("w", whole=True)
    pack = launchable("pack", 1, 1, [], [weight], params=("p",))
    passes = [pack, made("a", [X, weight], [A]), made("g", [A], [GRAD], BACK)]
    assert supply_of(passes, "a") == Supply(frozenset("aw"), (1,), (0,), frozenset("x"))


def test_a_parameter_that_is_updated_by_then_forbids_it() -> None:
    convolution = launchable("a", ROWS, SECTION, [X], [A], params=("p",))
    update = launchable("update", ROWS, ROWS, [], [], UPDATE, updates=("p",))
    first, last = made("g", [A], [GRAD], BACK), made("more", [A, GRAD], [GRAD], BACK)
    supplies = Supplies(graph_with([convolution, first, update, last]))
    assert supplies.of("a", 1) is not None
    assert supplies.of("a", 3) is None


def test_of_channels_all_are_made_that_a_later_pass_reads() -> None:
    low, high = Use("c", channels=(0, 8)), Use("c", channels=(8, 16))
    writes = [made("low", [X], [low]), made("high", [X], [high])]
    reads = [made("g", [low], [GRAD], BACK), made("more", [C, GRAD], [GRAD], BACK)]
    supplies = Supplies(graph_with([*writes, *reads]))
    assert supplies.of("c", 2) == Supply(frozenset("c"), (0, 1), (), frozenset("x"))
    supplies = Supplies(graph_with([*writes, reads[1], made("last", [low, GRAD], [GRAD], BACK)]))
    assert supplies.of("c", 3) == Supply(frozenset("c"), (0,), (), frozenset("x"))


def test_an_overwritten_map_is_made_again_only_where_no_pass_needs_the_new_one() -> None:
    passes = [made("a", [X], [A]), made("b", [A], [B]), made("over", [X], [A])]
    last = made("g", [B], [GRAD], BACK)
    assert supply_of([*passes, last], "b") == Supply(frozenset("ab"), (0, 1), (), frozenset("x"))
    needing = [*passes, made("g", [A, B], [GRAD], BACK)]
    found = supply_of(needing, "b")
    assert found == Supply(frozenset("ab"), (0, 1, 2), (), frozenset("x"))


def test_an_input_that_is_changed_in_place_cannot_be_read_once_more() -> None:
    passes = [made("relu", [X], [X]), made("g", [X], [GRAD], BACK)]
    assert supply_of(passes, "x") is None


@pytest.mark.parametrize("setting", ["effects", "reduction", "updates"])
def test_what_must_not_run_twice_is_not_made_again(setting: str) -> None:
    value = ("p",) if setting == "updates" else True
    maker = launchable("a", ROWS, SECTION, [X], [A], **{setting: value})
    assert supply_of([maker, made("g", [A], [GRAD], BACK)], "a") is None


def test_what_the_caller_is_given_is_not_written_again() -> None:
    passes = [made("a", [X], [A]), made("g", [A], [GRAD], BACK)]
    assert supply_of(passes, "a", outputs=("a", "g")) is None
    assert supply_of(passes, "a") is not None


def test_gradients_are_made_again_too() -> None:
    passes = [
        made("a", [X], [A]),
        made("g", [A], [GRAD], BACK),
        made("first", [GRAD], [B], BACK),
        made("second", [GRAD, B], [C], BACK),
    ]
    assert supply_of(passes, "g", outputs=("c",)) == Supply(
        frozenset("g"), (1,), (), frozenset("a")
    )
