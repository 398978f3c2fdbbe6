"""Lanes on a GPU: streams that wait for one another, and one graph where they cannot."""

import pytest
import torch

import tvdnn
from tvdnn.runtime.lanes import Lanes, apart, lanes_of

pytestmark = pytest.mark.gpu

BATCH, CLASSES, STEPS = 16, 10, 3


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def test_different_streams_are_apart(device: torch.device) -> None:
    assert apart([torch.cuda.Stream(device) for _ in range(3)])


def test_one_stream_is_not_apart_from_itself_and_is_let_go(device: torch.device) -> None:
    stream = torch.cuda.Stream(device)
    assert not apart([stream, stream])
    assert stream.query()


def test_where_the_host_waits_for_each_launch_they_are_not_apart(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert not Lanes(device).apart


def test_one_graph_computes_the_same(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lanes_of(device).apart
    want = trained(device)
    monkeypatch.setattr(lanes_of(device), "apart", False)
    assert all(torch.equal(a, b) for a, b in zip(trained(device), want, strict=True))


def trained(device: torch.device) -> list[torch.Tensor]:
    """Losses and parameters after some steps in which all that may leaves."""
    torch.manual_seed(0)
    net = tvdnn.models.vgg11(width=0.25, num_classes=CLASSES).to(device)
    x = torch.randn(BATCH, 3, 64, 64, device=device)
    y = torch.randint(0, CLASSES, (BATCH,), device=device)
    trainer = tvdnn.Trainer(net, x, policy="vdnn-all", chunk_size="256KiB", dtype="bf16")
    losses = [trainer.step(x, y) for _ in range(STEPS)]
    timeline = trainer.timeline(x, y)
    trainer.close()
    assert timeline.step_s > 0
    return [*losses, *net.parameters()]
