"""Trainers with a file: keep's bits, and steps that change nothing where the disk fails."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.faulty_file import FAILURES, FaultyFile, step_refused
from tests.support.running import LEARNING_RATE, MOMENTUM, alike, bits, random_batches
from tvdnn.engine import Trainer, virtualize
from tvdnn.engine.control import make_control, write_control
from tvdnn.errors import FileError, HostMemoryError, InputError
from tvdnn.optim import SGD, AdamW
from tvdnn.planner.ir.plan import TIERS
from tvdnn.planner.ir.schedule import Lane
from tvdnn.runtime.arena import Arena
from tvdnn.runtime.binding import Tensors
from tvdnn.runtime.file_calls import behind_error_word
from tvdnn.runtime.host_slab import Slab
from tvdnn.runtime.runner import Runner
from tvdnn.runtime.section_file import SectionFile
from tvdnn.runtime.views import NO_BYTES, ByteViews
from tvdnn.units import KIB

pytestmark = pytest.mark.usefixtures("units_of_one")

BATCH, SHAPE, CLASSES, STEPS = 8, (3, 16, 16), 5, 3
SGD_OF_TEST = SGD(LEARNING_RATE, momentum=MOMENTUM)


def make_net() -> nn.Sequential:
    """Convolutions whose normalizations move statistics in forward."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(width, 8, 3, padding=1) for width in (3, 8, 8)]
    parts = [each for layer in layers for each in (layer, nn.BatchNorm2d(8), nn.ReLU())]
    return nn.Sequential(*parts, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, CLASSES))


def trainer_of(net: nn.Module, **options: Any) -> Trainer:
    options = {"optimizer": SGD_OF_TEST, "chunk_size": "8KiB"} | options
    return Trainer(net, torch.empty(BATCH, *SHAPE), **options)


def with_file(file: object, **options: Any) -> Trainer:
    """A trainer most of whose maps go to the file."""
    options = {"policy": "vdnn-all", "host_budget": 48 * KIB} | options
    return trainer_of(make_net(), file=file, **options)


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    return random_batches(count, (BATCH, *SHAPE), CLASSES, 1)


@pytest.mark.parametrize("optimizer", [SGD_OF_TEST, AdamW(1e-3)], ids=["sgd", "adamw"])
@pytest.mark.parametrize("policy", ["vdnn-all", "tvdnn-heuristic", "superneurons", "auto"])
def test_steps_through_a_file_have_keeps_bits(tmp_path: Path, policy: str, optimizer: Any) -> None:
    kept = trainer_of(make_net(), policy="keep", optimizer=optimizer)
    budget = "min" if policy == "auto" else None if policy == "vdnn-all" else 370 * KIB
    filed = with_file(tmp_path, policy=policy, budget=budget, optimizer=optimizer, order_seed=3)
    assert filed.schedule.file_nbytes > 0
    assert filed.schedule.slab_nbytes <= 48 * KIB
    for x, y in batches():
        assert kept.step(x, y).item() == filed.step(x, y).item()
    assert alike(bits(kept), bits(filed))
    filed.close()


def test_accumulated_steps_through_a_file_have_keeps_bits(tmp_path: Path) -> None:
    kept, filed = trainer_of(make_net(), policy="keep"), with_file(tmp_path)
    for x, y in batches():
        assert kept.step(x, y, accumulate=2).item() == filed.step(x, y, accumulate=2).item()
    assert alike(bits(kept), bits(filed))
    filed.close()


def test_virtualized_steps_through_a_file_have_keeps_bits(tmp_path: Path) -> None:
    (x, _), *_ = batches(1)
    found = []
    for how in (
        {"policy": "keep"},
        {"policy": "vdnn-all", "file": tmp_path, "host_budget": "48KiB"},
    ):
        net = virtualize(make_net(), x, chunk_size="8KiB", **how)
        net(x).square().sum().backward()
        found.append([param.grad for param in net.parameters()])
    assert net.schedule.file_nbytes > 0
    assert all(map(torch.equal, *found))


def test_no_update_comes_before_the_last_copy_of_the_file(tmp_path: Path) -> None:
    trainer = with_file(tmp_path)
    schedule = trainer.schedule
    passes, copies = schedule.graph.passes, (Lane.FILE_WRITE, Lane.FILE_READ)
    last = max(index for index, step in enumerate(schedule.steps) if step.lane in copies)
    updates = [
        index
        for index, step in enumerate(schedule.steps)
        if step.pass_index >= 0 and passes[step.pass_index].changes_parameters
    ]
    assert updates
    assert min(updates) > last
    trainer.close()


@pytest.mark.parametrize("at", [0, 7])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_step_whose_disk_fails_changes_nothing(tmp_path: Path, failure: str, at: int) -> None:
    """And the step can be taken again, as if nothing had been."""
    whole, file = trainer_of(make_net(), policy="keep"), FaultyFile(tmp_path, **FAILURES[failure])
    trainer = with_file(file, order_seed=at)
    first, *others = batches()
    for each in (whole, trainer):
        each.step(*first)
    file.fail_at(at)
    before = bits(trainer)
    with step_refused(tmp_path):
        trainer.step(*others[0])
    assert alike(before, bits(trainer))
    for x, y in others:
        assert whole.step(x, y).item() == trainer.step(x, y).item()
    assert alike(bits(whole), bits(trainer))
    trainer.close()


@pytest.mark.parametrize("failure", FAILURES)
def test_the_error_word_stops_every_update_of_the_step(tmp_path: Path, failure: str) -> None:
    """The updates themselves read the word: nobody restores parameters here."""
    schedule = with_file(tmp_path).schedule
    net = make_net()
    params, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    detached = {name: param.detach() for name, param in params.items()}
    momenta = {name: torch.zeros_like(param) for name, param in detached.items()}
    updates = {name: (param, momenta[name]) for name, param in detached.items()}
    block, control = make_control(torch.device("cpu"))
    arena, slab = Arena(torch.device("cpu")), Slab(pinned=False)
    arena.reserve(schedule.arena_nbytes)
    slab.reserve(schedule.slab_nbytes)
    file = FaultyFile(tmp_path, **FAILURES[failure])
    file.reserve(schedule.file_nbytes)
    tensors = Tensors(
        detached | buffers, {**updates, **{n: (b,) for n, b in buffers.items()}}, control
    )
    runner = Runner(
        schedule, tensors, kernels="torch", arena=arena, slab=slab, file=file, order_seed=5
    )
    runner.refresh()
    before = copy.deepcopy((detached, momenta))
    changes = []
    for fails in (True, False):
        write_control(block, (LEARNING_RATE, MOMENTUM, 0.0, 0.0, 1.0, 1.0), 1.0, 0)
        ((x, y),) = batches(1)
        runner.fill(schedule.graph.network.inputs[0], x)
        runner.fill("target", y)
        if fails:
            file.fail_at(4)
            with pytest.raises(FileError):
                runner.run()
        else:
            runner.run()
        pairs = zip(before, (detached, momenta), strict=True)
        changes.append(
            any(not torch.equal(old[name], new[name]) for old, new in pairs for name in old)
        )
    assert changes == [False, True]


def test_a_plan_without_the_file_reads_no_error_word(tmp_path: Path) -> None:
    """A trainer may have a file that its plan does not use."""
    _, control = make_control(torch.device("cpu"))
    found = {}
    for policy in ("keep", "vdnn-all"):
        trainer = with_file(tmp_path, policy=policy)
        schedule, file = trainer.schedule, SectionFile(tmp_path)
        calls: list[Callable[[], None]] = [print] * len(schedule.steps)
        bound = behind_error_word(
            schedule, calls, ByteViews(NO_BYTES, NO_BYTES, file=file), control, SimpleNamespace()
        )
        found[policy] = sum(mine is not theirs for mine, theirs in zip(calls, bound, strict=True))
        trainer.close()
        file.close()
    assert found == {"keep": 0, "vdnn-all": 1}


def test_a_file_budget_is_held(tmp_path: Path) -> None:
    trainer = with_file(tmp_path)
    nbytes = trainer.schedule.file_nbytes
    trainer.close()
    fits = with_file(tmp_path, file_budget=nbytes)
    assert fits.schedule.file_nbytes <= nbytes
    fits.close()
    with pytest.raises(HostMemoryError, match=r"above the file budget .*raise file_budget"):
        with_file(tmp_path, file_budget=nbytes // 4)


def test_arguments_that_make_no_sense_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"file_budget is '1GiB', but there is no file; name a"):
        trainer_of(make_net(), file_budget="1GiB")
    with pytest.raises(FileError, match="name a folder"):
        with_file(tmp_path / "none")


def test_steps_through_a_second_arena_have_keeps_bits() -> None:
    """What the stand-in of a peer cannot hold is on the host."""
    kept = trainer_of(make_net(), policy="keep")
    on_peer = trainer_of(make_net(), policy="vdnn-all", peer_budget=64 * KIB, order_seed=2)
    schedule = on_peer.schedule
    assert 0 < schedule.peer_nbytes <= 64 * KIB
    assert schedule.slab_nbytes > 0
    for x, y in batches():
        assert kept.step(x, y).item() == on_peer.step(x, y).item()
    assert alike(bits(kept), bits(on_peer))


def test_sections_go_to_every_tier_in_the_order_of_these(tmp_path: Path) -> None:
    kept = trainer_of(make_net(), policy="keep")
    trainer = with_file(tmp_path, peer_budget=32 * KIB, host_budget=160 * KIB)
    schedule = trainer.schedule
    assert {each.tier for each in schedule.plan.transfers} == set(TIERS)
    assert schedule.peer_nbytes <= 32 * KIB
    assert schedule.slab_nbytes <= 160 * KIB
    for x, y in batches():
        assert kept.step(x, y).item() == trainer.step(x, y).item()
    assert alike(bits(kept), bits(trainer))
    trainer.close()


def test_a_file_that_was_given_stays_open(tmp_path: Path) -> None:
    file = SectionFile(tmp_path)
    for _ in range(2):
        trainer = with_file(file)
        trainer.step(*batches(1)[0])
        trainer.close()
    file.close()
