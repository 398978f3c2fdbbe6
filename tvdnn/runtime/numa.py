"""Host memory on the NUMA node of a GPU, so that copies cross no link between processors."""

import ctypes
import platform
from pathlib import Path
from typing import Any, Final

import torch

DEVICES: Final = Path("/sys/bus/pci/devices")
MBIND: Final = {"x86_64": 237, "aarch64": 235}  # the number of the system call
PREFERRED: Final = 1  # MPOL_PREFERRED: pages lie elsewhere where the node has none left
WORD_BITS: Final = 64


def node_of_gpu(devices: Path = DEVICES) -> int | None:
    """The NUMA node of the present GPU; None where the machine tells none."""
    found: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
        node = int((devices / address / "numa_node").read_text())
    except (AttributeError, OSError, ValueError):
        return None
    return node if node >= 0 else None


def prefer_node(memory: torch.Tensor, node: int) -> bool:
    """Have the pages of a mapping lie on a node, once they are first written.

    Returns whether the system does so: some containers do not let a process choose.
    """
    number = MBIND.get(platform.machine())
    if number is None or not 0 <= node < WORD_BITS:
        return False
    mask = ctypes.c_ulong(1 << node)
    call = ctypes.CDLL(None, use_errno=True).syscall
    place = ctypes.c_void_p(memory.data_ptr()), ctypes.c_ulong(memory.numel())
    words = ctypes.byref(mask), ctypes.c_ulong(WORD_BITS + 1), ctypes.c_uint(0)
    return bool(call(ctypes.c_long(number), *place, ctypes.c_int(PREFERRED), *words) == 0)
