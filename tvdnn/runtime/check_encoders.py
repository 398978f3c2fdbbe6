"""Encoders that a CUDA graph cannot hold, refused before a schedule is bound."""

import torch

from ..errors import InputError
from ..graph import is_packed
from ..planner.ir.schedule import Action, Schedule, Space


def check_encoders(schedule: Schedule, kernels: str, device: torch.device) -> None:
    """Refuse references on a GPU that wait for it in an encoding, which no capture takes."""
    if kernels != "torch" or device.type != "cuda":
        return
    for step in schedule.steps:
        if step.action is not Action.RECODE:
            continue
        code = step.writes[0]
        if is_packed(code.form):
            awaited, cure = "the number of its values", "a policy without bitmap and ssdc"
        elif code.space is Space.SLAB:
            awaited, cure = "its copy to the host", "a plan without zero_copy"
        else:
            continue
        raise InputError(
            f'kernels="torch" on a GPU cannot encode {code.buffer} by the codec '
            f"{code.form.codec}: a CUDA graph cannot wait for {awaited}; "
            f'pass kernels="triton", or {cure}'
        )
