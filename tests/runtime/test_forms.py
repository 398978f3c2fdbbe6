"""Forms at run time: launches and recodes bound to the bytes of codes, in random order."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.support.schedules.coded import BATCH, WIDTH, Rest, coded_schedule
from tests.support.schedules.maker import ScheduleMaker, buffer, graph_of, launchable
from tvdnn.graph import BITS, Graph, Kind, Pass, Use
from tvdnn.kernels.codec.sign_bits import packed_signs_reference, passes_reference
from tvdnn.ops.bind_pass import BoundPass
from tvdnn.ops.operator import Control, Launch
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.verify.check import check
from tvdnn.runtime import binding
from tvdnn.runtime.binding import Tensors, bind, input_places, output_places, place_view
from tvdnn.runtime.cpu_executor import POISON, CpuExecutor
from tvdnn.runtime.kernel_set import kernel_set
from tvdnn.runtime.views import ByteViews

SEEDS = (None, 0, 1, 2, 3)


def make(launch: Launch) -> None:
    (x,), (m, *codes) = launch.reads, launch.writes
    m.copy_(x - 0.25)
    for code in codes:
        code.copy_(packed_signs_reference(m))


def use(launch: Launch) -> None:
    launch.writes[0].copy_(2 * launch.reads[0])


def square(launch: Launch) -> None:
    launch.writes[0].copy_(launch.reads[0] * launch.reads[0])


def mask(launch: Launch) -> None:
    m, z = launch.reads
    passing = passes_reference(m) if m.dtype == torch.uint8 else ~(m <= 0)
    launch.writes[0].copy_(torch.where(passing, z, 0.0))


RUNS: Mapping[str, Callable[[Launch], None]] = {
    each.__name__: each for each in (make, use, square, mask)
}


@pytest.fixture(autouse=True)
def hand_made_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind_pass(graph: Graph, pass_: Pass) -> BoundPass:
        return BoundPass(RUNS[pass_.name], {}, "ieee", (), "ieee")

    monkeypatch.setattr(binding, "bind_pass", bind_pass)


def no_tensors() -> Tensors:
    word = torch.zeros(1)
    return Tensors({}, {}, Control(torch.zeros(8), word, word.long()))


def ran(schedule: Schedule, x: Tensor, *, seed: int | None, by_unit: bool) -> Tensor:
    """The output of one step over poisoned memory."""
    arena, slab = (
        torch.full((nbytes,), POISON, dtype=torch.uint8)
        for nbytes in (schedule.arena_nbytes, schedule.slab_nbytes)
    )
    memory = ByteViews(arena, slab)
    calls = bind(schedule, memory, no_tensors(), kernel_set("torch"), by_unit=by_unit)
    buffers = schedule.graph.buffers
    for place in input_places(schedule)["x"]:
        place_view(memory, buffers["x"], place).copy_(x[place.start : place.stop])
    CpuExecutor(schedule, memory, calls, seed=seed).run(0, len(schedule.steps))
    (place,) = output_places(schedule)["g"]
    return place_view(memory, buffers["g"], place).clone()


def signed(seed: int) -> Tensor:
    """Values of both signs, zeros of both signs and NaN."""
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(seed))
    x[0, :4] = torch.tensor([0.25, -0.0, torch.nan, torch.inf])
    return x


@pytest.mark.parametrize("rest", Rest)
@pytest.mark.parametrize("by_unit", [False, True])
def test_a_code_does_what_its_map_does(rest: Rest, by_unit: bool) -> None:
    """In every order, with the bytes of map and code poisoned after their last steps."""
    schedule = coded_schedule(rest)
    check(schedule)
    for number, seed in enumerate(SEEDS):
        x = signed(number)
        m = x - 0.25
        expected = torch.where(~(m <= 0), 4 * m * m, 0.0)
        found = ran(schedule, x, seed=seed, by_unit=by_unit)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_a_recode_is_bound_to_the_launcher_of_its_forms() -> None:
    schedule = coded_schedule(Rest.RECODED)
    arena = torch.zeros(schedule.arena_nbytes, dtype=torch.uint8)
    given = list[tuple[Tensor, Tensor]]()
    kernels = SimpleNamespace(sign_bits_encode=lambda raw, coded: given.append((raw, coded)))
    calls = bind(schedule, ByteViews(arena, arena[:0]), no_tensors(), kernels, by_unit=False)
    for index, step in enumerate(schedule.steps):
        if schedule.step_name(index).startswith("recode"):
            calls[index]()
            raw, coded = given.pop()
            assert (raw.shape, raw.dtype) == ((4, WIDTH), torch.float32)
            assert (coded.shape, coded.dtype) == ((4, WIDTH // 8), torch.uint8)
            operands = (*step.reads, *step.writes)
            assert [each.data_ptr() - arena.data_ptr() for each in (raw, coded)] == [
                operand.offset for operand in operands
            ]


@pytest.mark.parametrize("order", [("raw", BITS), (BITS, "raw")])
def test_codes_of_inputs_and_outputs_are_not_their_places(order: tuple[str, str]) -> None:
    """An output is handed out raw. Its code is poisoned after its last use."""
    both = buffer("x", 2, 8, 1, Kind.INPUT)
    passes = [launchable("look", 2, 1, (Use("x", forms=(BITS,)),), ())]
    maker = ScheduleMaker(graph_of([both], passes, ("x",), ("x",)), arena_nbytes=66)
    for form in order:
        maker.place("x", 64 if form == BITS else 0, form=form)
    maker.recode("x", 0, 2, "raw", BITS)
    maker.launch("look", 0, 2, (("x", BITS),))
    schedule = maker.build()
    assert {place.offset for place in input_places(schedule)["x"]} == {0}
    assert {place.offset for place in output_places(schedule)["x"]} == {0}
    memory = ByteViews(torch.zeros(66, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8))
    CpuExecutor(schedule, memory, [lambda: None] * 2, seed=None).run(0, 2)
    assert memory.arena[:64].eq(0).all()
    assert memory.arena[64:].eq(POISON).all()
    assert schedule.max_live_nbytes == 66
