"""Lanes on a GPU: branches that wait for one another by counts, and by edges where they must."""

import faulthandler
import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Event

import pytest
import torch

import tvdnn
from tvdnn.runtime import segments
from tvdnn.runtime.lane_sync import GraphSegment, Lanes, are_independent_queues, lanes_of

pytestmark = pytest.mark.gpu

BATCH, CLASSES, STEPS = 16, 10, 3
MANY, PATIENCE_S = 100, 100.0


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def test_different_streams_are_apart(device: torch.device) -> None:
    streams = [torch.cuda.Stream(device) for _ in range(5)]
    assert are_independent_queues(streams[:3], streams[3:])


def test_one_stream_is_not_apart_from_itself_and_is_let_go(device: torch.device) -> None:
    stream, turn = torch.cuda.Stream(device), torch.cuda.Stream(device)
    assert not are_independent_queues([stream, stream], [turn])
    assert turn.query()


@pytest.mark.parametrize("connections", [1, 2, 4])
def test_steps_are_the_same_where_the_gpu_has_few_queues(
    device: torch.device, connections: int
) -> None:
    """How many is read as CUDA starts: they train in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.test_lane_sync"],
        env=os.environ | {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{digest(trained(device))}\n"


def test_where_the_host_waits_for_each_launch_they_are_not_apart(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert not Lanes(device).independent


@pytest.mark.parametrize("delay_seed", [None, 0])
def test_steps_through_a_second_arena_compute_the_same(
    device: torch.device, delay_seed: int | None
) -> None:
    """Two more lanes: a second arena on this GPU stands in for that of a peer."""
    want = trained(device)
    assert all(
        torch.equal(a, b)
        for a, b in zip(trained(device, delay_seed, peer_budget="4MiB"), want, strict=True)
    )


def test_edges_compute_the_same(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lanes_of(device).independent
    want = trained(device)
    monkeypatch.setattr(lanes_of(device), "independent", False)
    assert all(torch.equal(a, b) for a, b in zip(trained(device), want, strict=True))


def test_short_windows_compute_the_same(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = trained(device)
    monkeypatch.setattr(segments, "SEGMENT_COPIES", 3)
    for seed in (None, 0):
        assert all(torch.equal(a, b) for a, b in zip(trained(device, seed), want, strict=True))


def test_a_window_is_issued_once_few_launches_are_left_of_the_one_before(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither sooner nor at their end, in each step; delays make launches long beside the host."""
    monkeypatch.setattr(segments, "SEGMENT_COPIES", 3)
    replay, issue = torch.cuda.CUDAGraph.replay, Lanes.issue
    begun: list[tuple[bool, bool]] = []
    low_water: list[torch.cuda.Event] = []
    ends: list[torch.cuda.Event] = []
    pending: list[bool] = []

    def replayed(graph: torch.cuda.CUDAGraph) -> None:
        begun.append((all(e.query() for e in low_water), all(e.query() for e in ends)))
        replay(graph)
        ends[:] = [torch.cuda.current_stream(device).record_event()]

    def issued(self: Lanes, window: GraphSegment) -> None:
        with monkeypatch.context() as patched:  # others replay graphs as well
            patched.setattr(torch.cuda.CUDAGraph, "replay", replayed)
            issue(self, window)
        if window.low_water is not None:
            pending.append(not window.low_water.query())
            low_water[:] = [window.low_water]

    monkeypatch.setattr(Lanes, "issue", issued)
    trained(device, delay_seed=0)
    few, none = zip(*begun[1:], strict=True)
    assert len(few) > STEPS
    assert all(few)
    assert not all(none)
    each = len(pending) // (STEPS + 1)  # the timeline is of one step more
    assert all(any(pending[start : start + each]) for start in range(0, len(pending), each))


def test_another_thread_may_free_memory_meanwhile(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the device with the driver's locks in hand; a test that hangs ends in time."""
    monkeypatch.setattr(segments, "SEGMENT_COPIES", 3)
    want = trained(device)
    trainer, net, batch = make(device)
    losses = [trainer.step(*batch)]
    done = Event()

    def free() -> int:
        for count in itertools.count():
            if done.is_set():
                return count
            torch.empty(2**25, dtype=torch.uint8, device=device)
            torch.cuda.empty_cache()
        raise AssertionError

    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    with ThreadPoolExecutor(1) as pool:
        freed = pool.submit(free)
        try:
            losses += [trainer.step(*batch) for _ in range(STEPS - 1)]
            params = [param.detach().clone() for param in net.parameters()]
            for _ in range(MANY):
                trainer.step(*batch)
        finally:
            done.set()
    faulthandler.cancel_dump_traceback_later()
    assert freed.result() > MANY
    assert all(torch.equal(a, b) for a, b in zip([*losses, *params], want, strict=True))
    trainer.close()


def test_steps_on_two_streams_take_turns(device: torch.device) -> None:
    want = trained(device)
    made = [make(device) for _ in range(2)]
    streams = [torch.cuda.Stream(device) for _ in made]
    losses: list[list[torch.Tensor]] = [[] for _ in made]
    torch.cuda.synchronize(device)
    for _ in range(STEPS):
        for (trainer, _, batch), stream, each in zip(made, streams, losses, strict=True):
            with torch.cuda.stream(stream):
                each.append(trainer.step(*batch))
    torch.cuda.synchronize(device)
    for (trainer, net, _), each in zip(made, losses, strict=True):
        got = [*each, *net.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        trainer.close()


def trained(
    device: torch.device, delay_seed: int | None = None, peer_budget: str | None = None
) -> list[torch.Tensor]:
    """Losses and parameters after some steps in which all that may leaves."""
    trainer, net, batch = make(device, delay_seed, peer_budget)
    assert (trainer.schedule.peer_nbytes > 0) is (peer_budget is not None)
    losses = [trainer.step(*batch) for _ in range(STEPS)]
    params = [param.detach().clone() for param in net.parameters()]
    assert trainer.timeline(*batch).step_s > 0
    trainer.close()
    return [*losses, *params]


def make(
    device: torch.device, delay_seed: int | None = None, peer_budget: str | None = None
) -> tuple[tvdnn.Trainer, torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """A trainer whose maps all leave, its network and a batch; the same each time."""
    torch.manual_seed(0)
    net = tvdnn.models.vgg11(width=0.25, num_classes=CLASSES).to(device)
    x = torch.randn(BATCH, 3, 64, 64, device=device)
    y = torch.randint(0, CLASSES, (BATCH,), device=device)
    how = {"policy": "vdnn-all", "chunk_size": "256KiB", "dtype": "bf16"}
    how |= {"peer_budget": peer_budget}
    trainer = tvdnn.Trainer(net, x, delay_seed=delay_seed, **how)
    return trainer, net, (x, y)


def digest(tensors: list[torch.Tensor]) -> str:
    """One line for all their bits."""
    found = sha256()
    for tensor in tensors:
        found.update(tensor.cpu().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(f"{digest(trained(torch.device('cuda', 0)))}\n")
