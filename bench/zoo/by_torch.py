"""One network's training by torch itself, as a user who wants speed would set it up."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from bench.cross_entropies import cross_entropies
from bench.turn import Turn
from bench.zoo.clock import Row, empty, spanned, step_seconds, synchronize
from bench.zoo.rows import COMPILED, EAGER, GRAPHED

MODES: Final = {COMPILED: "default", GRAPHED: "reduce-overhead"}
WARM: Final = 3  # steps behind the first: reduce-overhead records its graphs in them
RATE, MOMENTUM = 1e-3, 0.9

Make = Callable[[], nn.Module]
Step = Callable[[], None]


def measured(
    make: Make,
    x: Tensor,
    y: Tensor,
    way: str,
    dtype: str,
    turn: Turn,
    *,
    weights: Sequence[float] = (1.0,),
) -> Row:
    """What a way to train the network takes: seconds of a step and of the first, and memory.

    Parameters are float32. In bf16 the network and the losses run under autocast. Eager searches
    algorithms in its turn; compiled steps find those of eager. Memory is the peak of torch's
    counter less what was there before; with CUDA graphs what torch has reserved.
    """
    empty(x.device)
    on_gpu = x.device.type == "cuda"
    held = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) if on_gpu else (0, 0)
    net = make().to(memory_format=torch.channels_last)
    if way == EAGER:
        turn.take()
    step = step_of(net, sgd(net), x, y, way, dtype, weights)
    begun_s = time.monotonic()
    step()
    synchronize(x.device)
    row = spanned(first_step_s=[(begun_s, time.monotonic())])
    turn.take()
    for _ in range(WARM):
        step()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()  # without the search for algorithms
    row["step_s"] = step_seconds(step, x.device)
    if on_gpu:
        peak = torch.cuda.max_memory_allocated() - held[0]
        torch.cuda.empty_cache()  # of a replayed graph, which allocates nothing, its pool counts
        reserved = torch.cuda.memory_reserved() - held[1]
        row["measured_peak_bytes"] = reserved if way == GRAPHED else peak
    torch._dynamo.reset()
    return row


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)


def step_of(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    way: str,
    dtype: str,
    weights: Sequence[float] = (1.0,),
) -> Step:
    """A step of training, in bf16 under autocast."""
    kind, in_bf16 = x.device.type, dtype == "bf16"

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=in_bf16):
            return cross_entropies(net(x), y, weights, torch.float32)

    called = torch.compile(loss, mode=MODES[way]) if way in MODES else loss

    def step() -> None:
        if way == GRAPHED:
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        called(x, y).backward()
        optimizer.step()

    return step
