"""Counts: one is told, others are awaited."""

import pytest
import torch

from tvdnn.kernels.counts import meet, meet_reference


@pytest.mark.parametrize(
    ("own", "reached", "least"),
    [(0, 7, (7, 4, 5)), (1, 0, (3, 0, 5)), (2, 9, (3, 4, 9)), (0, 1, (0, 0, 0)), (2, 0, (0, 4, 5))],
)
def test_it_tells_one_and_goes_on_where_others_have_come_far_enough(
    own: int, reached: int, least: tuple[int, int, int], generator: torch.Generator
) -> None:
    counts = [torch.tensor([3, 4, 5], dtype=torch.int32, device=generator.device) for _ in range(2)]
    for run, each in zip((meet, meet_reference), counts, strict=True):
        run(each, own, reached, least)
    assert torch.equal(*counts)


@pytest.mark.gpu
@pytest.mark.parametrize("awaited", range(3))
def test_it_waits_for_another_stream(awaited: int) -> None:
    counts = torch.zeros(3, dtype=torch.int32, device="cuda")
    early, seen = torch.zeros(2, device="cuda")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for told in (0, 2):  # first all kernels are loaded: that may wait for those that run
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            first_least, second_least, third_least = (told * (n == awaited) for n in range(3))
            meet(counts, 0, 0, (first_least, second_least, third_least))
            seen.fill_(told)
        with torch.cuda.stream(second):
            torch.cuda._sleep(20_000_000)
            torch.neg(seen, out=early)
            meet(counts, awaited, told, (0, 0, 0))
    torch.cuda.synchronize()
    assert (early.item(), seen.item()) == (0.0, 2.0)
