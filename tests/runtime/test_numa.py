"""Where the slab's pages lie: on the NUMA node that the system tells of the GPU."""

import mmap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tvdnn.runtime import numa

ADDRESS = "0000:1b:00.0"


@pytest.mark.parametrize(
    ("text", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), (None, None), ("", None)]
)
def test_the_node_is_the_one_of_the_gpus_bus(
    text: str | None, node: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    if text is not None:
        (tmp_path / ADDRESS).mkdir()
        (tmp_path / ADDRESS / "numa_node").write_text(text)
    assert numa.node_of_gpu(tmp_path) == node


def test_memory_stays_usable_whether_or_not_the_system_lets_choose() -> None:
    mapping = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    chosen = numa.prefer_node(memory, 0)
    assert not numa.prefer_node(memory, 1000)
    memory.fill_(7)
    assert int(memory.sum()) == 7 << 20
    start = f"{memory.data_ptr():x} "
    policies = [
        line
        for line in Path("/proc/self/numa_maps").read_text().splitlines()
        if line.startswith(start)
    ]
    assert not chosen or "prefer" in policies[0]
