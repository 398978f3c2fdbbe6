"""Products whose first operand is in registers, in Triton's intermediate code.

Hopper's products of warpgroups read registers after they were launched. What a loop's next step
writes there must wait until they have ended, which Triton leaves to one wait a product, of the step
behind (triton-lang/triton#9433).
"""

import re
from typing import Final

PRODUCT: Final = re.compile(r"ttng\.warp_group_dot %.*: tensor<[^>]*dot_op<\{opIdx = 0")
END: Final = re.compile(r"ttng\.warp_group_dot_wait .*pendings = 0\b")
LOOP: Final = re.compile(r"\bscf\.(for|while)\b|^\} do \{")


def products_in_flight(code: str) -> int:
    """How many products by registers may still read these as a step of a loop ends."""
    blocks: list[tuple[bool, int]] = []  # that are open: whether they are loops, products in flight
    found = 0
    for line in map(str.strip, code.splitlines()):
        if line.startswith("}") and blocks:
            is_loop, left = blocks.pop()
            if is_loop:
                found += left
            elif blocks:
                blocks[-1] = blocks[-1][0], blocks[-1][1] + left
        if line.endswith("{"):
            blocks.append((bool(LOOP.search(line)), 0))
        elif blocks:
            is_loop, left = blocks[-1]
            blocks[-1] = is_loop, 0 if END.search(line) else left + bool(PRODUCT.search(line))
    return found
