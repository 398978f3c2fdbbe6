"""The control block: what each step reads anew, such as its number and its learning rate."""

from hashlib import blake2b
from struct import Struct
from typing import Final

import torch

from ..ops.expand import CONTROL_NBYTES
from ..ops.operator import Control, FaultRecord, Group

# The seed, the step's number, the scale, a gap, 7 floats of the optimizer. Behind them on the
# device lie the flag of faults, which kernels set, and at byte 64 the record of the fault; at byte
# 96 the 5 words of this process among others, and at byte 128 the 6 sums of them over all.
_CONTROL = Struct("=qqf12x7f")
RECORD_AT: Final = 64
OWN: Final = slice(24, 29)
STATUS: Final = slice(32, 38)


def make_control(device: torch.device, group: Group | None = None) -> tuple[torch.Tensor, Control]:
    """The control block's bytes, and its parts."""
    block = torch.zeros(CONTROL_NBYTES, dtype=torch.uint8, device=device)
    floats, words = block.view(torch.float32), block.view(torch.int64)
    first = RECORD_AT // words.element_size()
    faults = FaultRecord(step=words[1:2], record=words[first : first + 2])
    parts = {"scale": floats[4:5], "seed": words[:1], "own": floats[OWN], "status": floats[STATUS]}
    return block, Control(floats[8:16], **parts, faults=faults, group=group)


def write_control(
    block: torch.Tensor,
    settings: tuple[float, ...],
    scale: float,
    seed: int,
    step: int = 1,
) -> None:
    """Write the next step's settings, on the current stream before the replay that reads them.

    Steps are numbered from 1. The flag behind the seven settings, and the record, are the device's.
    """
    floats = (*settings, *(0.0,) * 7)[:7]
    packed = bytearray(_CONTROL.pack(seed, step, scale, *floats))
    block[: _CONTROL.size].copy_(torch.frombuffer(packed, dtype=torch.uint8), non_blocking=True)


def seed_of_step(seed: int, steps: int) -> int:
    """The seed of the random numbers of the step behind `steps` others of a trainer.

    No two trainers draw alike: neighbouring seeds would be each other's a step later, were it the
    sum of both.
    """
    digest = blake2b(f"{seed} {steps}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
