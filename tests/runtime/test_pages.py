"""Pages at several addresses, and the arena that holds them."""

import pytest
import torch

from tvdnn.errors import DeviceError
from tvdnn.planner.ir.page_map import PAGE_NBYTES, PageMap
from tvdnn.runtime.arena import Arena
from tvdnn.runtime.pages import Mapping, make_pages

CPU = torch.device("cpu")
DEVICES = [
    pytest.param(CPU, id="cpu"),
    pytest.param(torch.device("cuda"), id="cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("device", DEVICES)
def test_a_page_is_seen_at_all_its_addresses(device: torch.device) -> None:
    pages = make_pages(3, PAGE_NBYTES, device)
    first, second = Mapping(pages, (0, 1, 2)), Mapping(pages, (2, 0, 1, 2))
    marks = torch.arange(3, dtype=torch.uint8, device=device) + 1
    first.bytes.view(3, PAGE_NBYTES)[:] = marks[:, None]
    assert second.bytes.view(4, PAGE_NBYTES)[:, -1].tolist() == [3, 1, 2, 3]
    second.bytes[0] = 9
    assert second.bytes[3 * PAGE_NBYTES] == first.bytes[2 * PAGE_NBYTES] == 9
    second.close()
    assert first.bytes[2 * PAGE_NBYTES] == 9
    first.close()
    pages.close()


@pytest.mark.parametrize("device", DEVICES)
def test_an_arena_becomes_paged_and_stays_so(device: torch.device) -> None:
    arena = Arena(device)
    arena.reserve(100)
    assert not arena.nbytes_outside_torch
    table = PageMap(PAGE_NBYTES, (1, 0, 1))
    assert not arena.holds(100, table)
    arena.reserve(2 * PAGE_NBYTES, table)
    assert arena.nbytes == arena.nbytes_outside_torch == 2 * PAGE_NBYTES
    mapped = arena.mapped(table)
    arena.bytes[PAGE_NBYTES:] = 5
    assert mapped.bytes[0] == mapped.bytes[2 * PAGE_NBYTES] == 5
    mapped.close()
    arena.reserve(2 * PAGE_NBYTES + 1)
    assert arena.nbytes == 3 * PAGE_NBYTES
    arena.close()
    assert arena.nbytes == 0


@pytest.mark.gpu
def test_an_arena_above_the_memory_of_the_device_is_refused() -> None:
    arena = Arena(torch.device("cuda"))
    with pytest.raises(DeviceError, match="free; pass a budget below that"):
        arena.reserve(1 << 40, PageMap(PAGE_NBYTES, (0,)))
    assert arena.nbytes == 0
