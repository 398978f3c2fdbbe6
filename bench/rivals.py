"""Steps of torch itself on the frontier's networks: what else trains them in less memory.

    python -m bench.rivals -o bench/results/plans/rivals_h100.json
    python -m bench.rivals --nets unet --ways eager checkpoints -o rows.json

The networks, batches and data are those of `bench/frontier.py`. Ways are eager; torch.compile, in
its default mode and with CUDA graphs ("reduce-overhead"), and with an activation memory budget;
checkpointing by block; and, without batch normalization, accumulation of gradients over parts of
the batch. All have float32 parameters under autocast to bfloat16, channels_last, and SGD with
momentum. Each way is a process of its own. Processes compile side by side; all but one stop while
that one is timed. A way whose first two steps take over LIMIT_S is shown as such. Memory is the
peak of torch's counter less the images and labels; with CUDA graphs, what torch has reserved.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bench.command_line import parser_of
from bench.environment import software
from bench.frontier import NETS
from bench.same_steps import labels
from bench.side_by_side import SideBySide
from bench.timing import paced
from bench.turn import ParentLock
from tests.support.accuracy import eager
from tvdnn import models

WAYS: Final = (
    "eager",
    "compile",
    "compile reduce-overhead",
    *(f"compile budget {budget}" for budget in (0.2, 0.5)),
    "checkpoints",
    "compiled checkpoints",
    *(f"accumulate {parts}" for parts in (2, 4, 8)),
)
LIMIT_S: Final = 180  # from the start of a way's first step to the end of its second
STEPS: Final = 8

Row = dict[str, Any]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--jobs", type=int, default=3, help="processes side by side")
    parser.add_argument("--one", nargs=2, metavar=("NET", "WAY"), help="one row, in this process")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(*options.one)))
        return
    environment = {
        **software(),
        "gpu": torch.cuda.get_device_name(),
        "commit": os.environ.get("TVDNN_COMMIT", "unknown"),
    }
    rows = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    with ThreadPoolExecutor(options.jobs) as pool:
        children = SideBySide()
        jobs = [(net, way) for way in options.ways for net in options.nets if suits(net, way)]
        for done in as_completed([pool.submit(row_of, children, *job) for job in jobs]):
            row = done.result()
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
            title = "Steps of torch on the frontier's networks"
            document = {"title": title, "environment": environment, "rows": rows}
            options.output.write_text(json.dumps(document, indent=1) + "\n")


def suits(name: str, way: str) -> bool:
    """Accumulation alone asks for a network without batch normalization."""
    if not way.startswith("accumulate"):
        return True
    with torch.device("meta"):
        net = models.by_name(name)
    return not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())


def row_of(side_by_side: SideBySide, name: str, way: str) -> Row:
    """The row of one way, or why there is none."""
    command = [sys.executable, "-m", "bench.rivals", "--one", name, way]
    try:
        *_, (_, text) = side_by_side.lines(command)
    except ChildProcessError as error:
        return {"net": name, "way": way, "error": str(error)}
    found: Row = json.loads(text)
    return found


def measured(name: str, way: str) -> Row:
    """A row: seconds of a step, and the peak of memory."""
    batch, side, _ = NETS[name]
    torch.manual_seed(1)
    channels, *sides = models.image_shape(name)
    with torch.device("cuda"):
        net = eager(models.by_name(name), torch.float32)
        x = torch.randn(batch, channels, *([side, side] if side else sides))
        y = labels(net, x)
    x = x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    kind, _, number = way.rpartition(" ")
    if "checkpoints" in way:
        checkpoint_blocks(name, net)
    if kind == "compile budget":
        torch._functorch.config.activation_memory_budget = float(number)
    parts = int(number) if kind == "accumulate" else 1
    called = called_as(net, way)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for part, target in zip(x.chunk(parts), y.chunk(parts), strict=True):
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(called(part), target)
            (loss / parts).backward()
        optimizer.step()

    row: Row = {"net": name, "way": way, "batch": batch, "dtype": "bf16"}
    begun_s = time.perf_counter()
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    row["first_steps_s"] = time.perf_counter() - begun_s
    ParentLock().acquire()  # the others are stopped
    if row["first_steps_s"] > LIMIT_S:
        return row
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()  # without the search for algorithms in the first steps
    row["step_s"] = paced(step, STEPS)
    peak = torch.cuda.max_memory_allocated()
    if "overhead" in way:  # a replayed graph allocates nothing: its pool counts
        torch.cuda.empty_cache()
        peak = torch.cuda.memory_reserved()
    row["measured_peak_bytes"] = peak - x.nbytes - y.nbytes
    return row


def called_as(net: nn.Module, way: str) -> Any:
    """The network as a way calls it."""
    if way in ("eager", "checkpoints"):
        return net
    return torch.compile(net, mode="reduce-overhead" if "overhead" in way else None)


def loss_of(outputs: Any, y: Tensor) -> Tensor:
    """The cross-entropy of what autocast left, in float32."""
    return functional.cross_entropy(outputs.float(), y)


def checkpoint_blocks(name: str, net: Any) -> int:
    """Have each block of a network run again in backward, from what it reads. Their number."""
    blocks = _blocks_of(name, net)
    for block in blocks:
        block.forward = _again(block.forward)
    return len(blocks)


def _again(forward: Any) -> Any:
    """`forward` with a copy of each list that it reads: DenseNet's grows before backward."""

    def again(*inputs: Any) -> Any:
        read = (list(each) if isinstance(each, list) else each for each in inputs)
        return checkpoint(forward, *read, use_reentrant=False)

    return again


def _blocks_of(name: str, net: Any) -> list[nn.Module]:
    """The blocks as their papers draw them; of VGG-16 the layers up to each pooling."""
    if name == "vgg16":
        layers = list(net.features)
        ends = [n + 1 for n, each in enumerate(layers) if isinstance(each, nn.MaxPool2d)]
        net.features = nn.Sequential(
            *(nn.Sequential(*layers[start:end]) for start, end in pairwise((0, *ends)))
        )
        return list(net.features)
    if name == "resnet50":
        stages = (net.layer1, net.layer2, net.layer3, net.layer4)
        return [block for stage in stages for block in stage]
    if name == "densenet121":
        return [each for each in net.modules() if type(each).__name__ == "DenseLayer"]
    if name == "googlenet":
        return [each for key, each in net.named_children() if key.startswith("inception")]
    return [*net.down, *net.up]


if __name__ == "__main__":
    main()
