"""Forms at run time: launches and recodes bound to the bytes of codes, in random order."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.support.schedules import restored
from tests.support.schedules.coded import BATCH, WIDTH, Rest, coded_schedule
from tests.support.schedules.maker import ScheduleMaker, buffer, graph_of, launchable
from tests.support.schedules.restored import restored_graph, restored_schedule
from tvdnn.graph import (
    BITMAP,
    BITS,
    FP8,
    FP10,
    FP16,
    RAW,
    SSDC,
    TF32,
    Form,
    Graph,
    Kind,
    Pass,
    Use,
    capacity_of,
    with_share,
)
from tvdnn.kernels.codec.sign_bits import packed_signs_reference, passes_reference
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.kernels.pointwise.activation_math import rectified_reference
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
        names = {each.name for each in graph.passes}
        runs = RUNS if names <= RUNS.keys() else RESTORED_RUNS
        return BoundPass(runs[pass_.name], {}, "ieee", (), "ieee", pass_.domain)

    monkeypatch.setattr(binding, "bind_pass", bind_pass)


def weigh(launch: Launch) -> None:
    m, z = launch.reads
    launch.writes[0].copy_(m + z)


def make_rounded(launch: Launch) -> None:
    """Values that are not negative, rounded to TF32."""
    (x,), (m,) = launch.reads, launch.writes
    m.copy_(stored_reference(rectified_reference(x - 0.25), torch.float32, "tf32"))


RESTORED_RUNS = {"make": make_rounded, "use": use, "square": square, "weigh": weigh}


def no_tensors() -> Tensors:
    word = torch.zeros(1)
    return Tensors({}, {}, Control(torch.zeros(8), word, word.long()))


def ran(
    schedule: Schedule,
    x: Tensor,
    *,
    seed: int | None,
    by_unit: bool,
    counts: Tensor | None = None,
    kernels: SimpleNamespace | None = None,
) -> Tensor:
    """The output of one step over poisoned memory. The words for counts are `counts`."""
    arena, slab = (
        torch.full((nbytes,), POISON, dtype=torch.uint8)
        for nbytes in (schedule.arena_nbytes, schedule.slab_nbytes)
    )
    counts = torch.full((schedule.num_counts,), -7, dtype=torch.int32) if counts is None else counts
    memory = ByteViews(arena, slab, counts)
    kernels = kernel_set("torch") if kernels is None else kernels
    calls = bind(schedule, memory, no_tensors(), kernels, by_unit=by_unit)
    buffers = schedule.graph.buffers
    for place in input_places(schedule)["x"]:
        place_view(memory, buffers["x"], place).copy_(x[place.start : place.stop])
    CpuExecutor(schedule, memory, calls, seed=seed).run(0, len(schedule.steps))
    (place,) = output_places(schedule)["g"]
    return place_view(memory, buffers["g"], place).clone()


def signed(seed: int, rows: int = BATCH) -> Tensor:
    """Values of both signs, zeros of both signs and NaN."""
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))
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


RESTORING = (
    TF32,
    *(form._replace(share=share) for form in (BITMAP, SSDC) for share in (0, 1, 100, 255, 256)),
)


@pytest.mark.parametrize("form", RESTORING, ids=str)
@pytest.mark.parametrize("by_unit", [False, True])
def test_a_decoded_map_has_the_bits_of_the_map(form: Form, by_unit: bool) -> None:
    """In every order, with a short last section, and the codes of two sections on the host."""
    schedule = restored_schedule(form)
    check(schedule)
    for number, seed in enumerate(SEEDS):
        x = signed(number, restored.BATCH)
        m = stored_reference(rectified_reference(x - 0.25), torch.float32, "tf32")
        expected = m + 4 * m * m
        found = ran(schedule, x, seed=seed, by_unit=by_unit)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("form", [FP16, FP10, FP8], ids=str)
@pytest.mark.parametrize("by_unit", [False, True])
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_a_map_decoded_of_a_lossy_code_is_rounded(form: Form, by_unit: bool, name: str) -> None:
    """In every order, for its reader in backward alone."""
    schedule, kernels = restored_schedule(form), vars(kernel_set("torch"))
    check(schedule)
    for number, seed in enumerate(SEEDS):
        x = signed(number, restored.BATCH)
        m = stored_reference(rectified_reference(x - 0.25), torch.float32, "tf32")
        code, rounded = torch.empty(4 * m.numel(), dtype=torch.uint8), torch.empty_like(m)
        code = code[: {FP16: 2, FP8: 1}.get(form, 4) * m.numel()]
        kernels[f"{form}_encode"](m, code)
        kernels[f"{form}_decode"](code, rounded)
        assert not torch.equal(rounded, m)
        expected = rounded + 4 * m * m
        found = ran(schedule, x, seed=seed, by_unit=by_unit, kernels=kernel_set(name))
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("form", [BITMAP, SSDC], ids=str)
@pytest.mark.parametrize("beyond", [0, 1, 2, 30])
def test_capacities_of_none_short_exact_and_full(form: Form, beyond: int) -> None:
    """Sections have as many values as heads have room for, or some more. Each is counted."""
    form = with_share(form, 0.5)
    schedule = restored_schedule(form)
    m = restored_graph().buffers["m"]
    x = torch.full((restored.BATCH, WIDTH), -1.0)
    expected = list[int]()
    for section in range(m.num_sections):
        start, stop = m.bounds(section)
        values = x[start:stop].view(-1)
        count = min(values.numel(), capacity_of(m, section, form) + beyond)
        values[:count] = 1.25
        expected.append(count)
    counts = torch.full((schedule.num_counts,), 99, dtype=torch.int32)
    found = ran(schedule, x, seed=3, by_unit=False, counts=counts)
    assert torch.equal(found, torch.where(x > 0, 1.0 + 4.0, 0.0))
    assert counts.tolist() == expected


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


@pytest.mark.parametrize("order", [(RAW, BITS), (BITS, RAW)])
def test_codes_of_inputs_and_outputs_are_not_their_places(order: tuple[Form, Form]) -> None:
    """An output is handed out raw. Its code is poisoned after its last use."""
    both = buffer("x", 2, 8, 1, Kind.INPUT)
    passes = [launchable("look", 2, 1, (Use("x", forms=(BITS,)),), ())]
    maker = ScheduleMaker(graph_of([both], passes, ("x",), ("x",)), arena_nbytes=66)
    for form in order:
        maker.place("x", 64 if form == BITS else 0, form=form)
    maker.recode("x", 0, 2, RAW, BITS)
    maker.launch("look", 0, 2, (("x", BITS),))
    schedule = maker.build()
    assert {place.offset for place in input_places(schedule)["x"]} == {0}
    assert {place.offset for place in output_places(schedule)["x"]} == {0}
    memory = ByteViews(torch.zeros(66, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8))
    CpuExecutor(schedule, memory, [lambda: None] * 2, seed=None).run(0, 2)
    assert memory.arena[:64].eq(0).all()
    assert memory.arena[64:].eq(POISON).all()
    assert schedule.max_live_nbytes == 66
