"""Machine code of kernels: what it reads before the products that make it have ended."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from triton import knobs

INSTRUCTION: Final = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")
PRODUCT: Final = re.compile(r"HGMMA\.64x(\d+)x\d+\S*\s+R(\d+),")
WAIT: Final = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")
REGISTER: Final = re.compile(r"\bR(\d+)\b")
COMMITTED: Final = "gsb0"  # of the last product of a group


def early_reads(code: str) -> int:
    """How many instructions use the sums of Hopper's products ahead of the wait for these.

    ptxas of triton 3.6 moves a rounding of sums there, where only selects come behind it: the sums
    then lack products. Instructions are followed in the order in which they lie.
    """
    pending: list[set[int]] = []  # by committed group, oldest first, the registers of its sums
    group: set[int] = set()
    early = 0
    for instruction in INSTRUCTION.findall(code):
        product, wait = PRODUCT.search(instruction), WAIT.search(instruction)
        if product:
            columns, first = int(product[1]), int(product[2])
            group |= {*range(first, first + columns // 2)}
            if COMMITTED in instruction:
                pending.append(group)
                group = set()
        elif wait:
            left = int(wait[1], 16)
            pending = pending[len(pending) - left :] if left else []
        elif "EXIT" in instruction:
            pending, group = [], set()
        elif not instruction.startswith("WARPGROUP"):
            used = {int(number) for number in REGISTER.findall(instruction)}
            early += not used.isdisjoint(group.union(*pending))
    return early


def disassembled(cubin: bytes) -> str:
    """The instructions of an assembled kernel, by the disassembler that Triton brings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.nvdisasm.path, "-c", str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
