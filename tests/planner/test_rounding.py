"""Plans of auto that round maps: which, where, to what gain, and to what bits."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from tests.planner.test_coded_maps import dear
from tests.planner.test_joint import SMALL, drawn, small_graph
from tests.support.drawn_chains import random_costs
from tests.support.examples import examples
from tests.support.lowered import lower
from tests.support.rounding import CLASSES, Make, budget_of, graph_of, normalized, smooth
from tests.support.running import random_batches, train
from tvdnn.engine import training_graph
from tvdnn.errors import InputError
from tvdnn.graph import BITS, FP8, FP10, FP16, Direction, Form, Graph, is_lossy
from tvdnn.optim import SGD
from tvdnn.planner.ir.plan import Plan, Segment, Slot
from tvdnn.planner.joint.columns import Columns
from tvdnn.planner.joint.lp import JointLP
from tvdnn.planner.joint.orders import JointChoice, Order, orders
from tvdnn.planner.lowering.codes import Encoded
from tvdnn.planner.lowering.rounded_codes import (
    ROUNDING,
    forms_beside,
    lossy_forms,
    read_by_the_loss,
    rounded_between,
)
from tvdnn.planner.lowering.segments import Variant, segments
from tvdnn.planner.make import Problem
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.rounding import first_forms, parse_allowed, rounding_policy
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.verify.check import check


def allowed(graph: Graph, limit: float = 0.03) -> dict[str, Form]:
    return first_forms(lossy_forms(graph, limit))


def test_a_limit_allows_the_codecs_whose_rounding_is_within_it() -> None:
    graph = graph_of(smooth())
    forms = {limit: set(lossy_forms(graph, limit).values()) for limit in (0.03, 0.02, 0.001)}
    assert forms == {0.03: {(FP8, FP10, FP16)}, 0.02: {(FP10, FP16)}, 0.001: {(FP16,)}}
    assert not lossy_forms(graph, 0.0)
    assert not lossy_forms(graph, 1e-4)
    assert list(ROUNDING) == [FP8, FP10, FP16]  # the smallest code first


def test_rounding_errors_are_those_of_values_spread_over_an_octave() -> None:
    values = torch.linspace(1, 2, 100_001, dtype=torch.float64)[:-1]
    for form, bits in ((FP8, 3), (FP10, 4), (FP16, 10)):
        error = torch.round(values * 2**bits) / 2**bits - values
        assert (error.norm() / values.norm()).item() == pytest.approx(ROUNDING[form], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "share"), [(smooth, 0.5), (normalized, 0.3)])
def test_the_planner_wins_by_rounding_and_rounds_only_what_is_allowed(
    make: Make, share: float
) -> None:
    graph = graph_of(make())
    costs, budget = dear(graph), budget_of(make, share=share)
    problem = Problem(graph, costs, budget)
    exact = problem.schedule("auto")
    forms = allowed(graph)
    rounded = problem.rounding(forms, exact).schedule("auto")  # checked
    assert simulate(rounded, costs).step_s < simulate(exact, costs).step_s
    assert rounded.peak_nbytes <= budget
    assert not exact.plan.rounded
    found = rounded.plan.rounding
    assert found
    assert found.items() <= forms.items()
    one, *_ = found
    without = {name: form for name, form in forms.items() if name != one}
    other = problem.rounding(without, exact).schedule("auto")
    assert one not in other.plan.rounded
    assert simulate(other, costs).step_s <= simulate(exact, costs).step_s


def test_a_step_that_fits_is_kept_and_other_policies_round_nothing() -> None:
    graph = graph_of(smooth())
    costs = dear(graph)
    problem = Problem(graph, costs).rounding(allowed(graph))
    assert not problem.schedule("auto").plan.bridges
    tight = problem.within(budget_of(smooth))
    assert not tight.schedule("tvdnn-heuristic").plan.rounded
    assert tight.schedule("auto").plan.rounded


def test_values_that_the_loss_reads_stay_exact() -> None:
    graph = graph_of(smooth())
    outputs = {*graph.output_maps, *read_by_the_loss(graph)}
    assert not outputs & lossy_forms(graph, 0.03).keys()


def test_signs_take_bits_beside_rounded_values() -> None:
    """A ReLU that is not fused masks by bits. Its map's values make a weight's gradient."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(),
        nn.Linear(512, 4),
    )  # fmt: skip
    graph = training_graph(net, torch.empty(4, 3, 8, 8), sections=2)
    parts = segments(graph, {}, Variant.MEMORY)
    encoded = {Encoded("0", 0, FP8)}
    assert forms_beside(graph, "0", FP8) == (FP8, BITS)
    found = {each.form: each for each in rounded_between(graph, parts, encoded, ())}
    assert found.keys() == {FP8, BITS}
    plan = replace(keep(graph), segments=parts, bridges=tuple(found.values()))
    check(lower(graph, plan, dear(graph)))
    some = rounded_between(graph, parts, {Encoded("0", 1, FP8)}, ())
    assert {each.form: (each.first, each.count) for each in some} == {FP8: (1, 1), BITS: (0, 2)}
    left = rounded_between(graph, parts, encoded, [found[BITS]])
    assert [each.form for each in left] == [FP8]


def test_a_map_of_which_something_is_made_again_stays_exact() -> None:
    graph = graph_of(smooth())
    parts = segments(graph, {}, Variant.MEMORY)
    name = next(iter(allowed(graph)))
    encoded = {Encoded(name, 0, FP8)}
    assert list(rounded_between(graph, parts, encoded, ()))
    reader = next(
        number
        for number, pass_ in enumerate(graph.passes)
        if pass_.direction is Direction.FORWARD and name in pass_.read_buffers
    )
    again = Segment((Slot(reader, recompute=True),))
    behind = 1 + max(
        place
        for place, part in enumerate(parts)
        for slot in part.slots
        if graph.passes[slot.pass_index].direction is Direction.FORWARD
    )
    remaking = (*parts[:behind], again, *parts[behind:])
    assert not list(rounded_between(graph, remaking, encoded, ()))


def test_no_program_rounds_a_map_and_makes_others_again_of_it() -> None:
    """No share of the one goes with the whole of the other."""
    graph = graph_of(normalized())
    costs = dear(graph)
    order = next(each for each in orders(graph, costs) if not any(each.skeleton.choice.blocks))
    columns = Columns(order.skeleton, costs, allowed(graph))
    program = JointLP(columns, int(1.2 * order.skeleton.required.min()))
    pairs = [
        (coded, run)
        for coded, each in enumerate(columns.coded)
        for run, column in enumerate(columns.runs)
        if is_lossy(each.form) and (each.buffer, None) in column.takes
    ]
    assert pairs
    for coded, run in pairs:
        low, high = program.bounds()
        low[program._coded + coded] = low[program._runs + run] = 0.6
        assert program.solve((low, high)) is None


@pytest.mark.usefixtures("units_of_one")
@examples(6, **SMALL, form=st.sampled_from([FP8, FP10, FP16]))
def test_any_choice_has_the_bits_of_keeps_order_with_the_same_maps_rounded(
    seed: int, batch: int, sections: int, fuse: bool, form: Form
) -> None:
    """Wherever the planner rounds, passes read the values that they read in the simplest plan."""
    net, graph = small_graph(seed, batch, sections, fuse=fuse)
    rng, costs = random.Random(seed), random_costs(random.Random(seed))
    batches = random_batches(2, (batch, 3, 12, 12), CLASSES, seed)
    lossy = dict.fromkeys(lossy_forms(graph, 0.03), form)
    order = replace(rng.choice(orders(graph, costs)), lossy=lossy)
    skeleton = order.woven(drawn(rng, order))
    kept = lower(graph, keep(graph), costs)
    plan = skeleton.plan_within(4 * kept.arena_nbytes)
    assert plan is not None
    schedule = lower(graph, plan, costs)
    check(schedule)
    simple = lower(graph, in_keeps_order(graph, plan), costs)
    check(simple)
    found = train(net, schedule, batches, order_seed=seed)
    assert found.equals(train(net, simple, batches))
    assert torch.equal(found.losses[0], train(net, kept, batches).losses[0])


def in_keeps_order(graph: Graph, plan: Plan) -> Plan:
    """keep's plan in which the same sections of maps are rounded."""
    base = keep(graph)
    encoded = {Encoded(e.buffer, e.first, e.form) for e in plan.bridges if is_lossy(e.form)}
    parts = base.segments
    left = [each for each in base.bridges if each.form == BITS]
    return replace(base, bridges=(*base.bridges, *rounded_between(graph, parts, encoded, left)))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (None, None),
        ("lossy:0.03", 0.03),
        (" Lossy:.5", 0.5),
        ("lossy:0", 0.0),
        ("lossy:1e-3", 1e-3),
    ],
)
def test_limits_are_read(text: str | None, limit: float | None) -> None:
    assert parse_allowed(text) == limit


@pytest.mark.parametrize("text", ["", "lossy", "lossy:", "lossy:-1", "exact", "lossy:1", "lossy:x"])
def test_other_texts_are_refused_with_a_cure(text: str) -> None:
    with pytest.raises(InputError, match=r'allow=.*write for example allow="lossy:0\.03"'):
        parse_allowed(text)


def test_auto_alone_takes_a_limit() -> None:
    assert rounding_policy(None, 0.03) == rounding_policy("auto", 0.03) == "auto"
    assert rounding_policy("keep", None) == "keep"
    with pytest.raises(InputError, match=r"policy 'keep' takes no allow=.lossy:0\.03"):
        rounding_policy("keep", 0.03)


def test_orders_without_rounding_have_the_columns_of_before() -> None:
    graph = graph_of(normalized())
    costs = dear(graph)
    order: Order = orders(graph, costs)[0]
    assert not any(is_lossy(each.form) for each in order.columns.coded)
    rounding = replace(order, lossy=allowed(graph))
    names = {each.buffer for each in rounding.columns.coded if is_lossy(each.form)}
    assert names
    assert names <= allowed(graph).keys()


@pytest.mark.parametrize("seed", range(4))
def test_maps_whose_signs_mask_are_rounded_from_any_section_on(seed: int) -> None:
    """Convolutions mask by bits, of rounded sections and of exact ones in the same launch."""
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(8 if number else 3, 8, 3, padding=1) for number in range(3))
    layers = [layer for each in convolutions for layer in (each, nn.ReLU())]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, CLASSES))
    x = torch.empty(8, 3, 8, 8)
    graph = training_graph(net, x, optimizer=SGD(), sections=2, dtype="bf16", fuse=True)
    rng, lossy = random.Random(seed), allowed(graph)
    order = replace(rng.choice(orders(graph, dear(graph))), lossy=lossy)
    numbers = [n for n, each in enumerate(order.columns.coded) if is_lossy(each.form)]
    coded = frozenset((n, order.columns.first_coded(n, rng.uniform(0.3, 1))) for n in numbers)
    skeleton = order.woven(JointChoice(frozenset(), frozenset(), coded))
    plan = skeleton.plan_within(10**9)
    assert plan is not None
    assert BITS in {each.form for each in plan.bridges}
    assert plan.rounded
    schedule = lower(graph, plan, dear(graph))
    check(schedule)
    simple = lower(graph, in_keeps_order(graph, plan), dear(graph))
    batches = random_batches(2, (8, 3, 8, 8), CLASSES, seed)
    assert train(net, schedule, batches, order_seed=seed).equals(train(net, simple, batches))
