"""How long each step takes while a plan is made anew beside training.

    python -m bench.replan -o bench/results/plans/replan.json

Each network first trains by costs whose link is `--skew` times as fast as measured, so that the
first steps miss their prediction and the plan is made anew. While it is, no step may take more
than 1.5 times the median; the step that takes the new plan over may take 1 s. Losses and weights
are those of `keep` after as many steps. The command ends with status 1 where any of this is not so.
"""

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from triton import knobs

import tvdnn
from bench.command_line import parser_of
from bench.environment import environment
from bench.nets import batch, net_of
from bench.timing import timed
from bench.training import SGD, Oracle, digest, initial, release
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.timing.calibrate import CalibratedCosts
from tvdnn.units import GIB

CASES: Final = (("vgg16", 256, 1.6), ("resnet50", 256, 2.5))  # networks, batches and GiB
MOST_TIMES: Final = 1.5  # the median: a step beside planning
MOST_SWAP_S: Final = 1.0
MOST_STEPS: Final = 2000
AFTER: Final = 20  # steps by the new plan
FIRST, BESIDE, SWAP, BEHIND = "first", "beside planning", "swap", "after"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", help="if not all")
    parser.add_argument("--dtype", choices=("bf16", "tf32"), default="bf16")
    parser.add_argument("--skew", type=float, default=3.0, help="of the link's rates")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    chosen = [case for case in CASES if options.nets is None or case[0] in options.nets]
    rows = [run(*case, options.dtype, options.skew) for case in chosen]
    folder = Path(os.environ.get("OUT", "bench/results"))
    document = {"title": "Steps while a plan is made anew", "environment": environment()}
    path = options.output or folder / "replan.json"
    path.write_text(json.dumps({**document, "rows": rows}, indent=1) + "\n")
    sys.exit(any(row["faults"] for row in rows))


def run(name: str, size: int, inside: float, dtype: str, skew: float) -> dict[str, Any]:
    """The row of one network."""
    x, y = batch(name, size)
    costs = measured_costs(name, x, dtype, inside)
    skewed = CalibratedCosts(
        costs, {}, {tier: each.scaled(skew, skew) for tier, each in costs.links.items()}
    )
    trainer, net = make(name, x, dtype, "auto", inside, costs=skewed)
    before = trainer.schedule
    steps: list[tuple[str, float]] = []
    losses: list[torch.Tensor] = []
    compiled = list[str]()

    def step() -> None:
        losses.append(trainer.step(x, y))

    stages = list[str]()
    while stages.count(BEHIND) < AFTER and len(stages) < MOST_STEPS:
        was_beside, present = trainer.replanning, trainer.schedule
        with compilations() as found:
            seconds = timed(step)
        stages.append(stage_of(stages, was_beside, trainer.schedule is not present))
        steps.append((stages[-1], seconds))
        compiled += found if stages[-1] == SWAP else []
    feedback = trainer.feedback
    row = {
        "net": name,
        "batch": size,
        "dtype": dtype,
        "budget_bytes": round(inside * GIB),
        "skew": skew,
        "median_s": median_of(steps, BESIDE),
        "worst_s": max(of(steps, BESIDE), default=None),
        "swap_s": max(of(steps, SWAP), default=None),
        "after_s": median_of(steps, BEHIND),
        "first_s": of(steps, FIRST),
        "planning_s": sum(of(steps, BESIDE)),
        "steps_beside": len(of(steps, BESIDE)),
        "compiled_in_swap": compiled,
        "slab_bytes": (before.slab_nbytes, trainer.schedule.slab_nbytes),
        "arena_bytes": (before.arena_nbytes, trainer.schedule.arena_nbytes),
        "off": None if feedback is None else feedback.relative_error,
        "replanned": feedback is not None and feedback.replanned,
        "steps": steps,
    }
    told = [loss.item() for loss in losses]
    oracle = Oracle()
    oracle.equals(told, digest(net))
    release(trainer)
    row["equal"] = equals_keep(name, x, y, dtype, oracle, len(told))
    row["faults"] = faults(row)
    print({key: value for key, value in row.items() if key not in ("steps", "first_s")}, flush=True)
    return row


def stage_of(before: list[str], was_beside: bool, changed: bool) -> str:
    """The stage in which a step ran."""
    if changed:
        return SWAP
    if SWAP in before:
        return BEHIND
    if was_beside:
        return BESIDE
    return BEHIND if BESIDE in before else FIRST


def faults(row: dict[str, Any]) -> list[str]:
    """Messages about each promise that the row breaks."""
    if row["worst_s"] is None or row["swap_s"] is None:
        return ["no plan was made anew and taken over: choose another --skew"]
    found = []
    if row["worst_s"] > MOST_TIMES * row["median_s"]:
        found.append(f"a step beside planning took {row['worst_s'] / row['median_s']:.2f} medians")
    if row["swap_s"] > MOST_SWAP_S:
        found.append(f"the step that took the plan over took {row['swap_s']:.2f} s")
    if row["compiled_in_swap"]:
        found.append(f"{len(row['compiled_in_swap'])} kernels were compiled in the swap")
    return found if row["equal"] else [*found, "losses or weights are not keep's"]


def of(steps: list[tuple[str, float]], stage: str) -> list[float]:
    return [seconds for each, seconds in steps if each == stage]


def median_of(steps: list[tuple[str, float]], stage: str) -> float | None:
    found = of(steps, stage)
    return median(found) if found else None


@contextmanager
def compilations() -> Any:
    """The names of kernels that Triton compiles meanwhile, not of kernels that its cache has."""
    found, before = list[str](), knobs.compilation.listener

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            found.append(str(getattr(src, "name", src)))

    knobs.compilation.listener = listen
    try:
        yield found
    finally:
        knobs.compilation.listener = before


def measured_costs(name: str, x: torch.Tensor, dtype: str, inside: float) -> Costs:
    """The costs that this GPU is measured to have."""
    trainer, _ = make(name, x, dtype, "auto", inside, feedback=False)
    costs = trainer.costs
    release(trainer)
    return costs


def equals_keep(
    name: str, x: torch.Tensor, y: torch.Tensor, dtype: str, oracle: Oracle, steps: int
) -> bool | None:
    """Whether keep has the losses and weights that the oracle has seen."""
    trainer, net = make(name, x, dtype, "keep", None, feedback=False)
    losses = [trainer.step(x, y) for _ in range(steps)]
    equal = oracle.equals([loss.item() for loss in losses], digest(net))
    release(trainer)
    return equal


def make(
    name: str, x: torch.Tensor, dtype: str, policy: str, inside: float | None, **options: Any
) -> tuple[tvdnn.Trainer, torch.nn.Module]:
    """A trainer of a network with the same weights every time."""
    net = initial(name).cuda()
    budget = None if inside is None else round(inside * GIB)
    weights = net_of(name).weights
    given = {"optimizer": SGD, "loss_weights": weights, "policy": policy, "budget": budget}
    return tvdnn.Trainer(net, x, dtype=dtype, **given, **options), net


if __name__ == "__main__":
    main()
