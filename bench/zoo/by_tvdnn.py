"""One network's training by tvdnn: `Trainer` under its policies, and `virtualize`."""

import time
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

import tvdnn
from bench.cross_entropies import cross_entropies
from bench.same_steps import digest_of
from bench.turn import Turn
from bench.zoo.by_torch import MOMENTUM, RATE, Make
from bench.zoo.clock import Row, empty, spanned, step_seconds, synchronize
from bench.zoo.rows import AUTO, KEEP, VIRTUALIZED
from tvdnn.errors import BudgetError

STEPS: Final = 8  # of which the digest is taken


def measured(
    make: Make,
    x: Tensor,
    y: Tensor,
    way: str,
    dtype: str,
    turn: Turn,
    *,
    weights: Sequence[float] = (1.0,),
    budget: int | None = None,
) -> Row:
    """What a way to train the network takes: seconds of a step and of the first, and memory.

    The first step's seconds count from the call that makes the trainer. Without a budget the turn
    is held from then on; inside one it is given back for tracing and planning. Memory does not
    count what was there before.
    """
    empty(x.device)
    if way == VIRTUALIZED:
        return _virtualized(make, x, y, dtype, turn, weights)
    net = make()
    turn.take()
    begun_s = time.monotonic()
    plan: dict[str, Any] = {"policy": KEEP if way == KEEP else AUTO, "budget": budget}
    plan |= {"progress": turn if budget is not None else None, "loss_weights": weights}
    optimizer = tvdnn.optim.SGD(lr=RATE, momentum=MOMENTUM)
    try:
        trainer = tvdnn.Trainer(net, x, optimizer=optimizer, dtype=dtype, **plan)
    except BudgetError as error:
        return {**_named(plan), "floor_bytes": error.floor_nbytes, "error": str(error)}
    made_s = time.monotonic()
    losses = [trainer.step(x, y).clone()]
    first = _first_step(turn, begun_s, made_s, x.device)
    losses += [trainer.step(x, y).clone() for _ in range(STEPS - 1)]
    digest = digest_of([*losses, *net.state_dict().values()])
    trainer.settle()
    row = {
        **_named(plan),
        "step_s": step_seconds(lambda: trainer.step(x, y), x.device),
        "predicted_s": trainer.predicted.step_s,
        **first,
        "planned_peak_bytes": trainer.schedule.peak_nbytes,
        "measured_peak_bytes": trainer.peak_nbytes(),
        "in_pages": trainer.schedule.pages is not None,
        "digest": digest,
        "last_loss": losses[-1].item(),
    }
    trainer.close()
    return row


def _first_step(turn: Turn, begun_s: float, made_s: float, device: torch.device) -> Row:
    """The seconds until the first step has ended, and until the trainer was made, without waits."""
    synchronize(device)
    ended_s = time.monotonic()
    return spanned(first_step_s=turn.worked(begun_s, ended_s), made_s=turn.worked(begun_s, made_s))


def _named(plan: dict[str, Any]) -> Row:
    return {"policy": plan["policy"], "budget_bytes": plan["budget"]}


def _virtualized(
    make: Make, x: Tensor, y: Tensor, dtype: str, turn: Turn, weights: Sequence[float]
) -> Row:
    """The row of a user's own loop around the virtualized network, with torch's optimizer."""
    held = torch.cuda.memory_allocated() if x.device.type == "cuda" else 0
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    turn.take()
    begun_s = time.monotonic()
    virtual = tvdnn.virtualize(net, x, dtype=dtype, optimizer=optimizer)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropies(virtual(x), y, weights, torch.float32).backward()
        optimizer.step()

    made_s = time.monotonic()
    step()
    first = _first_step(turn, begun_s, made_s, x.device)
    for _ in range(STEPS - 1):
        step()
    virtual.settle()
    if x.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    row = {
        "policy": AUTO,
        "step_s": step_seconds(step, x.device),
        **first,
        "planned_peak_bytes": virtual.schedule.peak_nbytes,
    }
    if x.device.type == "cuda":
        row["measured_peak_bytes"] = torch.cuda.max_memory_allocated() - held
    virtual.close()
    return row
