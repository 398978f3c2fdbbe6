"""Counts: one is told, others are awaited."""

import pytest
import torch

from tvdnn.kernels.copy.semaphore import meet, meet_reference
from tvdnn.runtime.lane_sync import wait_for


@pytest.mark.parametrize(
    ("reached", "least"), [(7, (4, 5)), (0, (0, 5)), (9, (4, 0)), (1, (0, 0)), (0, (3, 4))]
)
def test_it_tells_one_and_goes_on_where_others_have_come_far_enough(
    reached: int, least: tuple[int, int], generator: torch.Generator
) -> None:
    counts = [torch.tensor([3, 4, 5], dtype=torch.int32, device=generator.device) for _ in range(2)]
    for run, each in zip((meet, meet_reference), counts, strict=True):
        run(each, 0, reached, dict(enumerate(least, 1)))
    assert torch.equal(*counts)


@pytest.mark.gpu
@pytest.mark.parametrize("awaited", [1, 2])
def test_it_waits_for_another_stream(awaited: int) -> None:
    counts = torch.zeros(3, dtype=torch.int32, device="cuda")
    early, seen = torch.zeros(2, device="cuda")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for told in (0, 2):  # the first round loads all kernels, which may wait for running ones
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            meet(counts, 0, 0, {awaited: told})
            seen.fill_(told)
        with torch.cuda.stream(second):
            torch.cuda._sleep(20_000_000)
            torch.neg(seen, out=early)
            counts[awaited].fill_(told)
    torch.cuda.synchronize()
    assert (early.item(), seen.item()) == (0.0, 2.0)


@pytest.mark.gpu
def test_another_stream_waits_for_what_it_tells() -> None:
    counts = torch.zeros(3, dtype=torch.int32, device="cuda")
    early, seen = torch.zeros(2, device="cuda")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for told in (0, 2):
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            wait_for(first, counts.data_ptr(), told)
            seen.fill_(told)
        with torch.cuda.stream(second):
            torch.cuda._sleep(20_000_000)
            torch.neg(seen, out=early)
            meet(counts, 0, told, {})
    torch.cuda.synchronize()
    assert (early.item(), seen.item()) == (0.0, 2.0)
