"""One network's training by torch itself, eager or compiled: rows beside those of tvdnn."""

import gc
from collections.abc import Sequence
from typing import Any

import torch

from bench.nets import loss_of
from bench.timing import GROUPS, paced
from bench.training import SGD, STEPS, WARM, Rows, initial, show
from bench.turn import Turn
from tests.support.accuracy import eager

AUTOCAST = "torch.compile, autocast"


def peers(
    name: str,
    x: torch.Tensor,
    y: torch.Tensor,
    dtype: str,
    others: Sequence[tuple[str, int]],
) -> Rows:
    """The same training by torch: channels_last, pure bf16 or float32 with tf32 arithmetic.

    `others` are further ways to train, each with a number of parts. AUTOCAST has float32
    parameters, as tvdnn has.
    """
    ways = [("torch eager", 1), *others]
    return [peer(name, policy, count, x, y, dtype) for policy, count in ways]


def peer(
    name: str,
    policy: str,
    parts: int,
    x: torch.Tensor,
    y: torch.Tensor,
    dtype: str,
) -> dict[str, Any]:
    """A row; the batch goes through in `parts`, whose gradients add up."""
    kind = torch.bfloat16 if dtype == "bf16" and policy != AUTOCAST else torch.float32
    net = eager(initial(name), kind).cuda()
    inputs = x.to(memory_format=torch.channels_last, dtype=kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=SGD.lr, momentum=SGD.momentum)
    called = net if policy == "torch eager" else torch.compile(net)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for part, target in zip(inputs.chunk(parts), y.chunk(parts), strict=True):
            with torch.autocast("cuda", torch.bfloat16, enabled=policy == AUTOCAST):
                loss = loss_of(name, called(part), target)
            (loss / parts).backward()
        optimizer.step()

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()  # without the search for algorithms in the first steps
    turn = Turn()
    turn.take()
    step_s = paced(step, (STEPS - WARM) // GROUPS)
    turn.give()
    own_copy = 0 if inputs is x else x.numel() * x.element_size()
    policy += f", {parts} parts" if parts > 1 else ""
    row = {"net": name, "batch": x.shape[0], "image_size": x.shape[2], "dtype": dtype}
    row |= {"policy": policy, "step_s": step_s, "images_per_s": x.shape[0] / step_s}
    row |= {"max_memory_allocated": torch.cuda.max_memory_allocated() - own_copy}
    row |= {"simulated": False, "infeasible": False, "hardware": torch.cuda.get_device_name()}
    show(row)
    torch._dynamo.reset()
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.empty_cache()
    return row
