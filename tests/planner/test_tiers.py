"""Tiers: sections rest on the host, in a file and on a peer, and come back as they were."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.planner.test_simulate import HandCosts
from tests.planner.test_simulate import graph as hand_graph
from tests.planner.test_tier_faults import training as convolutions
from tests.support.drawn_chains import CLASSES, STEPS, random_costs
from tests.support.examples import examples
from tests.support.lowered import lower
from tests.support.networks import random_chain
from tests.support.plans import random_plan
from tests.support.running import random_batches, train
from tests.support.schedules.maker import ScheduleMaker
from tvdnn.engine import training_graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.budgets import Budgets, TierBudgets
from tvdnn.planner.ir.costs import Link
from tvdnn.planner.ir.plan import FILE, HOST, PEER, TIERS, transfer_nbytes
from tvdnn.planner.ir.schedule import FILE_ALIGNMENT, Lane, Schedule, lane_name
from tvdnn.planner.lowering.floor import MinimumSchedule
from tvdnn.planner.lowering.segments import Variant
from tvdnn.planner.lowering.spill import with_spills
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.policies.vdnn import ALL, vdnn
from tvdnn.planner.timing.calibrate import CalibratedCosts, calibrate, compare
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.verify.check import check
from tvdnn.report.traces import Work, chrome_trace
from tvdnn.runtime.section_file import SectionFile

pytestmark = pytest.mark.usefixtures("units_of_one")

EXAMPLES = 40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SectionFile]:
    made = SectionFile(tmp_path_factory.mktemp("file"))
    yield made
    made.close()


@examples(EXAMPLES)
def test_any_plan_of_tiers_equals_keep(seed: int, file: SectionFile) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch, image = rng.randint(1, 7), rng.randint(4, 9)
    net = random_chain(rng, 3, image, CLASSES, forks=rng.random() < 0.3)
    batches = random_batches(STEPS, (batch, 3, image, image), CLASSES, seed)
    how = {"optimizer": SGD(momentum=0.9), "chunk_size": rng.randint(200, 9000)}
    how |= {"dtype": rng.choice(("fp32", "tf32", "bf16")), "fuse": rng.random() < 0.5}
    graph = training_graph(net, batches[0][0], **how)
    last = training_graph(net, batches[0][0], **how, updates_last=True)
    plan, costs = random_plan(last, rng, TIERS), random_costs(rng)
    least, _ = MinimumSchedule.of(last, plan, costs).floor
    most = lower(last, plan, costs).peak_nbytes
    budget = least + round(rng.choice((0.0, rng.random(), 1.0)) * max(0, most - least))
    schedule = lower(last, plan, costs, budget=budget)
    check(schedule)
    kept = lower(graph, keep(graph), costs)
    result = train(net, schedule, batches, order_seed=seed, file=file)
    assert result.equals(train(net, kept, batches))
    assert schedule.peak_nbytes <= budget


EVEN = Link(64, 64, 32, 32, 0.0)
COSTS = HandCosts({HOST: EVEN, FILE: Link(32, 16, 16, 8, 0.5), PEER: Link(128, 128, 64, 64, 0)}, {})


def bounced() -> Schedule:
    """p (64 bytes) goes to the file and back by two bounce buffers, q to the peer meanwhile."""
    maker = ScheduleMaker(hand_graph(), arena_nbytes=320, slab_nbytes=2 * FILE_ALIGNMENT)
    maker.place("r", 256)
    maker.place("p", 0)
    maker.place("q", 64)
    maker.launch("make_p", 0, 1)
    maker.offload("p", 0, 0)
    maker.to_file("p", 0, 0, 0)
    maker.launch("make_q", 0, 1)
    maker.to_peer("q", 0, 0)
    maker.from_file("p", 0, 0, FILE_ALIGNMENT)
    maker.launch("hold", 0, 1)
    maker.prefetch("p", 0, FILE_ALIGNMENT, 0)
    maker.from_peer("q", 0, 0, 64)
    maker.launch("use_p", 0, 1)
    maker.launch("use_q", 0, 1)
    return maker.build()


def test_each_link_has_its_own_lanes_and_rates() -> None:
    schedule = bounced()
    check(schedule)
    spans = simulate(schedule, COSTS).spans
    found = {schedule.step_name(span.step).split(" [")[0]: span[2:] for span in spans}
    assert found == {
        "make_p": (0, 1),
        "offload p": (1, 2),
        "make_q": (1, 2),
        "file write p": (2, 4.5),  # half a second, and 64 bytes at 32
        "peer offload q": (2, 3),  # 128 bytes at 128
        "hold": (2, 3),
        "peer prefetch q": (3, 4),
        "file read p": (4.5, 9),  # half a second, and 64 bytes at 16
        "prefetch p": (9, 10),
        "use_p": (10, 11),
        "use_q": (11, 12),
    }


def test_both_ways_of_a_link_share_it_and_not_another() -> None:
    """A write and a read of the file at once, beside a copy to the host."""
    assert copied_at_once(Lane.FILE_WRITE, Lane.FILE_READ) == (4.5, 6.5)
    assert copied_at_once(Lane.OFFLOAD, Lane.FILE_READ) == (1.0, 4.5)


def copied_at_once(first: Lane, second: Lane) -> tuple[float, float]:
    """The seconds of copies of 64 bytes that begin together on two lanes."""
    schedule = bounced()
    (step,) = (each for each in schedule.steps if each.lane is Lane.OFFLOAD)
    steps = (step._replace(lane=first, waits=()), step._replace(lane=second, waits=()))
    spans = simulate(replace(schedule, steps=steps, phase_split=2), COSTS).spans
    return spans[0].end_s, spans[1].end_s


def test_calibration_scales_each_link_by_its_own_copies() -> None:
    schedule = bounced()
    truth = CalibratedCosts(COSTS, {}, {**COSTS.links, FILE: COSTS.links[FILE].scaled(0.5, 0.25)})
    measured = replace(simulate(schedule, truth), simulated=False)
    found = calibrate(schedule, COSTS, measured).links
    assert found[FILE].out == pytest.approx(16)
    assert found[FILE].back == pytest.approx(4)
    assert found[HOST] == COSTS.links[HOST]
    assert found[PEER] == COSTS.links[PEER]
    drifts = {drift.name: drift for drift in compare(schedule, COSTS, measured).drifts}
    assert drifts["reads from the file"].error_s == pytest.approx(12)
    assert drifts["copies to the peer"].error_s == 0


def test_reports_show_the_lanes_that_have_steps() -> None:
    schedule = bounced()
    names = [lane_name(lane) for lane in schedule.lanes]
    assert names[3:] == ["file write", "file read", "peer offload", "peer prefetch"]
    timeline = simulate(schedule, COSTS)
    events = chrome_trace(schedule, timeline, title="a step")["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == set(names)
    works = {e["name"].split(" [")[0]: e["cat"] for e in events if e["ph"] == "X"}
    assert works["file write p"] == works["peer offload q"] == Work.OFFLOAD.value
    assert works["file read p"] == works["prefetch p"] == Work.PREFETCH.value


def test_what_returns_last_goes_to_the_file_first() -> None:
    """All maps of forward are away at its end. Backward reads those of the first layers last."""
    graph = convolutions(updates_last=True)
    plan = vdnn(graph, ALL, name="all", default=Variant.MEMORY)
    nbytes = sum(transfer_nbytes(graph, each) for each in plan.transfers)
    file = TierBudgets.with_file(None)
    found = with_spills(graph, plan, Budgets(None, nbytes // 2, tiers=file))
    rests = {tier: [each for each in found.transfers if each.tier == tier] for tier in (HOST, FILE)}
    assert sum(map(len, rests.values())) == len(found.transfers)
    on_host, in_file = ([each.needed_by for each in rests[tier]] for tier in (HOST, FILE))
    assert max(on_host) <= min(in_file)
    held = sum(transfer_nbytes(graph, each) for each in rests[HOST])
    assert (nbytes, held) == (41_472, 8192)  # bounce buffers take half of what the host has
    assert with_spills(graph, found, Budgets(None, nbytes // 2, tiers=file)) == found
    assert with_spills(graph, plan, Budgets(None, nbytes, tiers=file)) == plan
    assert with_spills(graph, plan, Budgets(None, nbytes // 2)) is plan
