"""The peak of a trainer's steps where its arena moves between one allocation and pages."""

import pytest
import torch

from tvdnn.engine.peak_memory import PeakMemory
from tvdnn.planner.ir.page_map import PAGE_NBYTES, PageMap
from tvdnn.runtime.arena import Arena


@pytest.mark.gpu
def test_an_allocation_and_later_pages_are_not_counted_together() -> None:
    net = torch.nn.Linear(512, 512, device="cuda")
    own = sum(each.numel() * each.element_size() for each in net.parameters())
    foreign = torch.empty(PAGE_NBYTES, dtype=torch.uint8, device="cuda")
    peak, arena = PeakMemory(net), Arena(torch.device("cuda"))
    arena.reserve(3 * PAGE_NBYTES)
    assert peak.nbytes(arena) == own + 3 * PAGE_NBYTES
    for pages in (2, 5):  # torch's counter would say 3 and these
        before = peak.nbytes(arena)
        peak.note(arena)
        arena.close()
        arena.reserve(pages * PAGE_NBYTES, PageMap(PAGE_NBYTES, tuple(range(pages))))
        peak.count_anew()
        assert peak.nbytes(arena) == max(before, own + pages * PAGE_NBYTES)
    peak.forget()
    arena.close()
    assert peak.nbytes(arena) == own
    del foreign


def test_on_a_cpu_nothing_is_counted() -> None:
    peak, arena = PeakMemory(torch.nn.Linear(4, 4)), Arena(torch.device("cpu"))
    arena.reserve(64)
    peak.note(arena)
    peak.forget()
    assert peak.nbytes(arena) == 0
