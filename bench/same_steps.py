"""Losses of twenty steps on a GPU and the time of a step, to tell whether a change altered either.

    python -m bench.same_steps -o new.json
    python -m bench.same_steps --against old.json -o new.json

Four networks train without a budget and inside a share of the memory that keep takes there. A
digest holds the bits of all losses and of the weights behind the last step. Random numbers are the
same in every run. `--against` exits with 1 where a digest differs, or a step takes over 1% longer.
This file uses the public interface alone: an older tree runs a copy of it.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor

import tvdnn
from bench.command_line import parser_of
from tvdnn import models

NETS: Final = {"vgg16": 256, "resnet50": 256, "densenet121": 128, "unet": 8}  # samples of a batch
STEPS, REPEATS, GROUP = 20, 15, 4
SLOWER: Final = 0.01


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--share", type=float, default=0.5, help="of keep's peak, as auto's budget")
    parser.add_argument("--against", type=Path, help="rows that these must equal")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    rows = [row for name in options.nets for row in rows_of(name, options.share)]
    environment = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": os.environ.get("TVDNN_COMMIT", "unknown"),
    }
    options.output.write_text(
        json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n"
    )
    if options.against:
        faults = list(differences(json.loads(options.against.read_text())["rows"], rows))
        print(*faults or ["same bits, and no step over 1% slower"], sep="\n")
        sys.exit(bool(faults))


def rows_of(name: str, budget_share: float) -> Iterator[dict[str, Any]]:
    """A row of each policy, keep first."""
    peak = 0
    for policy, share in (("keep", None), ("auto", budget_share)):
        torch.manual_seed(1)
        with torch.device("cuda"):
            net = models.by_name(name)
            x = torch.randn(NETS[name], *models.image_shape(name))
            y = labels(net, x)
        budget = None if share is None else int(share * peak)
        optimizer = tvdnn.optim.SGD(lr=1e-3, momentum=0.9)
        trainer = tvdnn.Trainer(
            net, x, optimizer=optimizer, dtype="bf16", policy=policy, budget=budget
        )
        losses = [trainer.step(x, y).clone() for _ in range(STEPS)]
        digest = digest_of([*losses, *net.state_dict().values()])
        seconds = median(step_s(trainer, x, y) for _ in range(REPEATS))
        peak = trainer.schedule.peak_nbytes
        yield {
            "net": name,
            "batch": NETS[name],
            "policy": policy,
            "budget_bytes": budget,
            "peak_bytes": peak,
            "digest": digest,
            "last_loss": losses[-1].item(),
            "step_s": seconds,
        }
        print(name, policy, digest, f"{1e3 * seconds:.2f} ms", flush=True)
        trainer.close()
        del trainer, net
        torch.cuda.empty_cache()


def labels(net: torch.nn.Module, x: Tensor) -> Tensor:
    """A class for each sample, or for each pixel where the network returns maps."""
    with torch.no_grad():
        _, classes, *sides = net.eval()(x[:1]).shape
    net.train()
    return torch.randint(classes, (len(x), *sides), device="cuda")


def step_s(trainer: Any, x: Tensor, y: Tensor) -> float:
    """Seconds of a step, of a few in a row."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(GROUP):
        trainer.step(x, y)
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / 1e3 / GROUP


def digest_of(tensors: list[Tensor]) -> str:
    found = hashlib.sha256()
    for each in tensors:
        found.update(each.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:24]


def differences(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[str]:
    for before, after in zip(old, new, strict=True):
        name = f"{after['net']} {after['policy']}"
        if before["digest"] != after["digest"]:
            yield f"{name}: other bits"
        if after["step_s"] > (1 + SLOWER) * before["step_s"]:
            yield f"{name}: {1e3 * before['step_s']:.2f} ms before, {1e3 * after['step_s']:.2f} now"


if __name__ == "__main__":
    main()
