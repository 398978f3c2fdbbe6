"""Trainers with a file on a GPU: keep's bits, and no change in steps whose disk fails."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tvdnn
from tests.support.faulty_file import FAILURES, FULL, FaultyFile, step_refused
from tests.support.running import LEARNING_RATE, MOMENTUM, alike, bits
from tvdnn.engine import Trainer
from tvdnn.errors import EngineError, FileError
from tvdnn.optim import SGD, AdamW
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import ASSUMED_LINKS, load
from tvdnn.planner.ir.plan import FILE, TIERS
from tvdnn.planner.ir.schedule import Lane
from tvdnn.runtime import file_link, segments
from tvdnn.runtime.host_counts import FILE_LANES
from tvdnn.runtime.lane_sync import lanes_of
from tvdnn.units import KIB, MIB

pytestmark = pytest.mark.gpu

BATCH, SIDE, CLASSES, STEPS = 64, 32, 10, 4
HOST = 2 * MIB
SGD_OF_TEST = SGD(LEARNING_RATE, momentum=MOMENTUM)
COSTS = Roofline(load("H100"), "bf16")


def make_net() -> nn.Sequential:
    """Convolutions whose normalizations move statistics in forward."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(width, 32, 3, padding=1) for width in (3, 32, 32)]
    parts = [each for layer in layers for each in (layer, nn.BatchNorm2d(32), nn.ReLU())]
    return nn.Sequential(
        *parts, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * (SIDE // 2) ** 2, CLASSES)
    ).cuda()


def trainer_of(**options: Any) -> Trainer:
    given = {"optimizer": SGD_OF_TEST, "chunk_size": 256 * KIB, "dtype": "bf16", "costs": COSTS}
    return Trainer(make_net(), batches(1)[0][0], **(given | options))


def with_file(file: object, **options: Any) -> Trainer:
    """A trainer most of whose maps go to the file."""
    return trainer_of(file=file, **({"policy": "vdnn-all", "host_budget": HOST} | options))


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator("cuda").manual_seed(1)
    shape = (BATCH, 3, SIDE, SIDE)
    return [
        (
            torch.randn(shape, device="cuda", generator=generator),
            torch.randint(0, CLASSES, shape[:1], device="cuda", generator=generator),
        )
        for _ in range(count)
    ]


def losses(trainer: Trainer, given: list[tuple[Tensor, Tensor]], **options: Any) -> list[float]:
    return [trainer.step(x, y, **options).item() for x, y in given]


def check_bits(filed: Trainer, **options: Any) -> None:
    """Some steps of a trainer have the bits of keep's. The trainer is closed."""
    assert filed.schedule.file_nbytes > 4 * HOST
    assert filed.schedule.slab_nbytes <= HOST
    kept = trainer_of(policy="keep", **options)
    assert losses(filed, batches()) == losses(kept, batches())
    assert alike(bits(filed), bits(kept))
    filed.close()


def file_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("file ")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not file_threads()


@pytest.mark.parametrize("policy", ["vdnn-all", "vdnn-all:p:sync", "superneurons", "auto"])
def test_steps_through_a_file_have_keeps_bits(tmp_path: Path, policy: str) -> None:
    small = {} if policy.startswith("vdnn") else {"budget": "min"}
    check_bits(with_file(tmp_path, policy=policy, **small))


@pytest.mark.parametrize("seed", range(4))
def test_random_delays_change_no_bit(tmp_path: Path, seed: int) -> None:
    check_bits(with_file(tmp_path, delay_seed=seed))


def test_steps_under_adamw_have_keeps_bits(tmp_path: Path) -> None:
    check_bits(with_file(tmp_path, optimizer=AdamW(1e-3)), optimizer=AdamW(1e-3))


def test_many_segments_have_keeps_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FILE_SEGMENT_COPIES", 3)
    check_bits(with_file(tmp_path, delay_seed=5))


def test_steps_where_branches_share_queues_have_keeps_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_of(torch.device("cuda", 0)), "independent", False)
    trainer = with_file(tmp_path)
    spans = trainer.timeline(*batches(1)[0]).spans
    assert {span.lane for span in spans} >= set(FILE_LANES)
    trainer.close()
    check_bits(with_file(tmp_path))


def test_steps_through_every_tier_have_keeps_bits(tmp_path: Path) -> None:
    """A second arena on this GPU stands in for that of a peer."""
    trainer = with_file(tmp_path, peer_budget=2 * MIB)
    assert {each.tier for each in trainer.plan.transfers} == set(TIERS)
    check_bits(trainer)


def test_accumulated_steps_have_keeps_bits(tmp_path: Path) -> None:
    kept, filed = trainer_of(policy="keep"), with_file(tmp_path)
    assert losses(kept, batches(), accumulate=2) == losses(filed, batches(), accumulate=2)
    assert alike(bits(kept), bits(filed))
    filed.close()


def test_virtualized_steps_have_keeps_bits(tmp_path: Path) -> None:
    ((x, y),) = batches(1)
    found = []
    for how in ({"policy": "keep"}, {"policy": "vdnn-all", "file": tmp_path, "host_budget": HOST}):
        net = tvdnn.virtualize(make_net(), x, chunk_size=256 * KIB, dtype="bf16", **how)
        for _ in range(2):
            net.zero_grad()
            functional.cross_entropy(net(x), y).backward()
        found.append([param.grad.clone() for param in net.parameters()])
    assert net.schedule.file_nbytes > 0
    assert all(map(torch.equal, *found))
    net.close()


def test_the_timeline_has_the_copies_of_the_file_in_their_places(tmp_path: Path) -> None:
    trainer = with_file(tmp_path)
    timeline, schedule = trainer.timeline(*batches(1)[0]), trainer.schedule
    ends = {span.step: span.end_s for span in timeline.spans}
    late = [
        ends[wait] - span.start_s
        for span in timeline.spans
        if span.lane in FILE_LANES
        for wait in schedule.steps[span.step].waits
    ]
    assert late
    assert max(late) < 1e-3  # of two clocks, and one of them is read after a nap
    assert all(span.start_s < span.end_s for span in timeline.spans if span.lane in FILE_LANES)
    trainer.close()


def test_rates_of_the_file_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_link, "COPIES", 3)
    trainer = with_file(tmp_path, costs=None)
    assert trainer.costs.links[FILE] != ASSUMED_LINKS[FILE]
    monkeypatch.setattr(file_link, "_seconds", None)  # none is measured again
    other = with_file(tmp_path, costs=None)
    assert other.costs.links[FILE] == trainer.costs.links[FILE]
    other.close()
    check_bits(trainer, costs=None)


@pytest.mark.parametrize("at", [0, 7])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_step_whose_disk_fails_changes_nothing(tmp_path: Path, failure: str, at: int) -> None:
    """And the step can be taken again, as if nothing had been."""
    whole, file = trainer_of(policy="keep"), FaultyFile(tmp_path, **FAILURES[failure])
    trainer = with_file(file, delay_seed=at)
    first, *others = batches()
    assert losses(whole, [first]) == losses(trainer, [first])
    file.fail_at(at)
    before = bits(trainer)
    with step_refused(tmp_path):
        trainer.step(*others[0])
    assert alike(before, bits(trainer))
    assert losses(whole, others) == losses(trainer, others)
    assert alike(bits(whole), bits(trainer))
    trainer.close()
    file.close()


def test_a_step_whose_disk_fails_where_branches_share_queues_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_of(torch.device("cuda", 0)), "independent", False)
    test_a_step_whose_disk_fails_changes_nothing(tmp_path, "full", 3)


def test_an_accumulated_step_whose_disk_fails_changes_nothing(tmp_path: Path) -> None:
    """The second of two parts."""
    whole, file = trainer_of(policy="keep"), FaultyFile(tmp_path, write=FULL)
    trainer = with_file(file)
    first, *others = batches()
    assert losses(whole, [first], accumulate=2) == losses(trainer, [first], accumulate=2)
    before = bits(trainer)
    writes = sum(step.lane is Lane.FILE_WRITE for step in _part_of(trainer).steps)
    assert writes > 0
    file.fail_at(writes + 1)
    with pytest.raises(FileError, match="No space left"):
        trainer.step(*others[0], accumulate=2)
    assert alike(before, bits(trainer))
    assert losses(whole, others, accumulate=2) == losses(trainer, others, accumulate=2)
    assert alike(bits(whole), bits(trainer))
    trainer.close()
    file.close()


def _part_of(trainer: Trainer) -> Any:
    """The schedule of half a batch."""
    runners = trainer._core.runners
    return next(each.schedule for (shape, *_), each in runners.items() if shape[0] == BATCH // 2)


def test_an_interrupt_comes_once_the_copies_of_the_step_have_ended(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupts(file: FaultyFile, view: memoryview, offset: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return file.really_write(view, offset)

    file = FaultyFile(tmp_path, write=interrupts)
    trainer = with_file(file)
    losses(trainer, batches(1))
    file.fail_at(2)
    with pytest.raises(KeyboardInterrupt):
        trainer.step(*batches(1)[0])
    assert not file_threads()
    assert file.take_fault() is None
    with pytest.raises(EngineError, match="stopped after a failed step"):
        trainer.step(*batches(1)[0])
    trainer.close()
    check_bits(with_file(file))
    file.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_changes_nothing(tmp_path: Path) -> None:
    def dies(file: FaultyFile, view: memoryview, offset: int) -> int:
        raise MemoryError

    file = FaultyFile(tmp_path, read=dies)
    trainer = with_file(file)
    first, second, *_ = batches()
    losses(trainer, [first])
    before = bits(trainer)
    file.fail_at(3)
    with pytest.raises(FileError, match="the lane file read failed"):
        trainer.step(*second)
    assert alike(before, bits(trainer))
    kept = trainer_of(policy="keep")
    assert losses(kept, [first, second])[1:] == losses(trainer, [second])
    trainer.close()
    file.close()
