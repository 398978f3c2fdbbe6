"""Pages at several addresses, and the arena that holds them."""

import warnings
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from tvdnn.errors import DeviceError
from tvdnn.planner.ir.page_map import PAGE_NBYTES, PageMap
from tvdnn.runtime import pages
from tvdnn.runtime.arena import Arena
from tvdnn.runtime.pages import Mapping, make_pages

CPU = torch.device("cpu")
DEVICES = [
    pytest.param(CPU, id="cpu"),
    pytest.param(torch.device("cuda"), id="cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("device", DEVICES)
def test_a_page_is_seen_at_all_its_addresses(device: torch.device) -> None:
    held = make_pages(3, PAGE_NBYTES, device)
    first, second = Mapping(held, (0, 1, 2)), Mapping(held, (2, 0, 1, 2))
    marks = torch.arange(3, dtype=torch.uint8, device=device) + 1
    first.bytes.view(3, PAGE_NBYTES)[:] = marks[:, None]
    assert second.bytes.view(4, PAGE_NBYTES)[:, -1].tolist() == [3, 1, 2, 3]
    second.bytes[0] = 9
    assert second.bytes[3 * PAGE_NBYTES] == first.bytes[2 * PAGE_NBYTES] == 9
    second.close()
    assert first.bytes[2 * PAGE_NBYTES] == 9
    first.close()
    held.close()


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


class Driver:
    """Stands for a driver with or without virtual memory management."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=102
    )

    def __init__(self, maps: int) -> None:
        self.maps, self.asked = maps, list[tuple[int, int]]()

    def cuDeviceGet(self, index: int) -> tuple[int, int]:  # noqa: N802
        return 0, 40 + index

    def cuDeviceGetAttribute(self, attribute: int, gpu: int) -> tuple[int, int]:  # noqa: N802
        self.asked.append((attribute, gpu))
        return 0, self.maps


@pytest.mark.parametrize("maps", [0, 1])
def test_the_driver_is_asked_once_whether_it_maps_pages(
    maps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, device = Driver(maps), torch.device("cuda", 1)
    monkeypatch.setattr(pages, "driver", driver)
    monkeypatch.setattr(pages, "_driver_maps", cache(pages._driver_maps.__wrapped__))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert pages.maps_pages(device) == pages.maps_pages(device) == bool(maps)
    assert driver.asked == [(102, 41)]
    assert [str(each.message).partition(";")[0] for each in warned] == (
        [] if maps else ["the driver of GPU 1 has no virtual memory management (cuMemMap)"]
    )


def test_a_cpu_maps_pages() -> None:
    assert pages.maps_pages(CPU)
