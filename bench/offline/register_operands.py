"""Products whose first operand is in registers, in Triton's intermediate code.

Hopper's products of warpgroups read registers after they were launched. What a loop's next step
writes there must wait until they have ended, which Triton leaves to one wait a product, of the step
behind (triton-lang/triton#9433).
"""

import re
from typing import Final

PRODUCT: Final = re.compile(r"ttng\.warp_group_dot %.*: tensor<[^>]*dot_op<\{opIdx = 0")
END: Final = re.compile(r"ttng\.warp_group_dot_wait .*pendings = 0\b")
LOOP: Final = re.compile(r"\bscf\.(for|while)\b")


def products_in_flight(code: str) -> int:
    """How many products by registers may still read these as a step of a loop ends."""
    loops: list[int] = []  # by open block, its products that nothing has waited for; else -1
    found = 0
    for line in map(str.strip, code.splitlines()):
        if line.startswith("}"):
            found += max(0, loops.pop()) if loops else 0
        if line.endswith("{"):
            loops.append(0 if LOOP.search(line) else -1)
        inner = next((place for place in reversed(range(len(loops))) if loops[place] >= 0), None)
        if inner is not None:
            loops[inner] = 0 if END.search(line) else loops[inner] + bool(PRODUCT.search(line))
    return found
