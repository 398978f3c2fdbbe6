"""Steps of processes that train together, a GPU each, beside DistributedDataParallel by torch.

    torchrun --nproc-per-node 2 -m bench.data_parallel -o FILE resnet50:256 vgg16:256
    torchrun --nproc-per-node 1 -m bench.data_parallel -o FILE --ways alone trainer -- resnet50:256
    torchrun --nproc-per-node 2 -m bench.data_parallel -o FILE --bucket-sizes 4MiB 25MiB vgg16:256
    torchrun --nproc-per-node 2 -m bench.data_parallel -o FILE --budget 7GiB --ways alone trainer \
        -- resnet50:256
    torchrun --nproc-per-node 1 -m bench.data_parallel -o FILE --stand-in 100GbE --world 8 \
        --ways alone trainer -- vgg16:256
    torchrun --nproc-per-node 1 -m bench.data_parallel -o FILE --turns 9 --ways alone trainer \
        -- resnet50:256

NAME:BATCH is a network of tvdnn.models and the samples of each process. `alone` is a Trainer
without a group, `trainer` one with it, for each of `--bucket-sizes`, `shards` one whose processes
have a shard each of the optimizer's state; `virtualize` is DistributedDataParallel around what
virtualize returns. `eager` and `compile` are torch's around torchvision's network of that name.
Seconds are those of the slowest process. With `--stand-in` one process trains as the first of
`--world` on the same samples: a kernel takes the place of each sum for as long as the link would be
busy. With `--turns` the trainers of all ways are there at once, and take so many turns at being
timed, of which the median is taken: a GPU's clock changes a step by more than sums do. Rows are
written as they come, by the first process. Those that FILE has stay.
"""

import argparse
import faulthandler
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import starmap
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import tvdnn
from bench.command_line import parser_of
from bench.environment import environment, software
from bench.link_stand_in import StandIn
from bench.plain_rows import NONE, PlainTable
from bench.zoo.by_torch import MOMENTUM, RATE, sgd, step_of
from bench.zoo.clock import Row, step_seconds
from bench.zoo.rows import COMPILED, EAGER
from tvdnn import models
from tvdnn.experiment.data import random_batch
from tvdnn.ops.builder import BUCKET_NBYTES
from tvdnn.planner.ir import hardware
from tvdnn.planner.ir.costs import RANKS
from tvdnn.planner.timing.calibrate import CalibratedCosts
from tvdnn.planner.timing.simulate import simulate
from tvdnn.units import MIB, format_bytes, parse_bytes

ALONE, TRAINER, SHARDS, VIRTUALIZE = "alone", "trainer", "shards", "virtualize"
WAYS: Final = (ALONE, TRAINER, SHARDS, VIRTUALIZE, EAGER, COMPILED)
OURS: Final = (ALONE, TRAINER, SHARDS)  # by Trainer
WARM: Final = 6  # steps before any is timed
CLASSES: Final = 10

Step = Callable[[], Any]

TABLE: Final = PlainTable(
    "Processes that train together",
    "distributed/h200.json",
    "Each process has a GPU and a batch of its own. `alone` is a Trainer without a group; in "
    "`shards` each process has a part of the optimizer's state (ZeRO stage 1); `eager` and "
    "`compile` are torch's DistributedDataParallel around torchvision's network. Where one process "
    "trains in a group, NCCL sums inside the graph. A stand-in is one process that trains as the "
    "first of eight: a kernel of 24 blocks takes the place of each sum, for as long as the "
    "simulated link would be busy. No byte leaves the GPU, and its times are no measurement of a "
    "link. Processes without a stand-in are linked by NVLink.",
    (
        ("network", lambda row: f"{row['net']}({row['batch']})"),
        ("processes", lambda row: str(row["world"])),
        ("stand-in for", lambda row: row["stand_in"] or NONE),
        ("way", lambda row: row["way"]),
        ("bucket", lambda row: row["bucket_size"] if row["way"] != ALONE else NONE),
        ("budget", lambda row: row.get("budget") or NONE),
        ("ms", lambda row: f"{1e3 * row['step_s']:.2f}"),
        ("predicted ms", lambda row: _predicted(row)),
        ("largest peak", lambda row: _peak(row)),
    ),
)


def _predicted(row: Mapping[str, Any]) -> str:
    return f"{1e3 * row['predicted_s']:.2f}" if "predicted_s" in row else NONE


def _peak(row: Mapping[str, Any]) -> str:
    return format_bytes(row["largest_peak_bytes"]) if "largest_peak_bytes" in row else NONE


@dataclass(frozen=True, slots=True)
class Subject:
    """A network with a batch on this process's device."""

    name: str
    batch: int
    dtype: str
    device: torch.device
    stand_in: StandIn | None = None
    budget: str | None = None  # of each process

    @property
    def world(self) -> int:
        """The processes that train together."""
        return self.stand_in.size if self.stand_in else distributed.get_world_size()

    def net(self) -> nn.Module:
        """The network with the same weights in every call and process."""
        torch.manual_seed(0)
        return models.by_name(self.name).to(self.device)

    def torchs_net(self) -> nn.Module:
        """torchvision's network of the same name."""
        torch.manual_seed(0)
        library = import_module("torchvision.models")  # tables are made without it
        net: nn.Module = library.get_model(self.name, num_classes=CLASSES)
        return net.to(self.device)

    def data(self) -> tuple[Tensor, Tensor]:
        """Images and labels, other ones in each process."""
        torch.manual_seed(1 + distributed.get_rank())
        shape = models.image_shape(self.name)
        return random_batch(self.batch, shape, CLASSES, self.device)


def main() -> None:
    options = _options()
    torch.backends.cudnn.benchmark = True
    faulthandler.dump_traceback_later(options.limit_s, exit=True)  # where a process waits for ever
    distributed.init_process_group()
    device = device_of_rank()
    known = json.loads(options.output.read_text()) if options.output.exists() else {"rows": []}
    rows: list[dict[str, Any]] = known["rows"]
    about = environment() if device.type == "cuda" else software()
    link = options.stand_in and hardware.INTERCONNECTS[options.stand_in]
    stand_in = StandIn(options.world, link) if link else None
    for case in options.cases:
        name, batch = case.split(":")
        subject = Subject(name, int(batch), options.dtype, device, stand_in, options.budget)
        for row in rows_of(subject, options.ways, options.bucket_sizes, options.turns):
            rows.append({**row, "stand_in": options.stand_in, "commit": about["commit"]})
            if distributed.get_rank() == 0:
                print(json.dumps(rows[-1]), flush=True)
                document = {"title": TABLE.title, "environment": about, "rows": rows}
                options.output.write_text(json.dumps(document, indent=1) + "\n")
    distributed.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("cases", nargs="+", metavar="NAME:BATCH")
    parser.add_argument("--dtype", choices=("bf16", "tf32"), default="bf16")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--bucket-sizes", nargs="+", default=["25MiB"])
    parser.add_argument("--turns", type=int, default=0, help="of each way, all beside each other")
    parser.add_argument("--budget", help="of each process's GPU memory, such as 7GiB")
    parser.add_argument("--stand-in", choices=hardware.INTERCONNECTS, help="for a link, on one GPU")
    parser.add_argument("--limit-s", type=float, default=600.0, help="of all rows")
    parser.add_argument("--world", type=int, default=8, help="processes by the stand-in")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    ours = options.stand_in or options.budget or options.turns
    if ours and not set(OURS).issuperset(options.ways):
        parser.error(f"a stand-in, a budget and turns are for --ways {', '.join(OURS)}")
    return options


def device_of_rank() -> torch.device:
    """This process's GPU, which is the present one from then on; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(distributed.get_node_local_rank() % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def rows_of(
    subject: Subject, ways: Sequence[str], bucket_sizes: Sequence[str], turns: int
) -> Iterator[Row]:
    """A row for each way, and for `trainer` one for each size of buckets."""
    about = {"net": subject.name, "batch": subject.batch, "dtype": subject.dtype}
    about |= {"world": subject.world, "budget": subject.budget}
    cases = [(way, size) for way in ways for size in bucket_sizes[: None if way == TRAINER else 1]]
    found = (
        _in_turns(subject, cases, turns) if turns else starmap(partial(_measured, subject), cases)
    )
    for (way, size), row in zip(cases, found, strict=True):
        yield {**about, "way": way, "bucket_size": size, **row}


def _in_turns(subject: Subject, cases: Sequence[tuple[str, str]], turns: int) -> Iterator[Row]:
    """Seconds of the slowest process, the median of so many turns, with all trainers there."""
    x, y = subject.data()
    rows: list[Row] = [{"turns": turns} for _ in cases]
    made = [_step_of(subject, *case, x, y, row) for case, row in zip(cases, rows, strict=True)]
    for step, _ in made:
        for _ in range(WARM):
            step()
    distributed.barrier()
    taken = [
        [_slowest(subject, step_seconds(step, subject.device))[0] for step, _ in made]
        for _ in range(turns)
    ]
    for _, close in made:
        close()
    for row, seconds in zip(rows, zip(*taken, strict=True), strict=True):
        yield row | _rates(subject, median(seconds))


def _measured(subject: Subject, way: str, bucket_size: str) -> Row:
    """Seconds of the slowest process, samples a second of all, and the largest peak of memory."""
    found: Row = {}
    x, y = subject.data()
    step, close = _step_of(subject, way, bucket_size, x, y, found)
    for _ in range(WARM):
        last = step()
    if way in OURS:
        found["loss_before"] = float(last)
    if subject.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    distributed.barrier()
    seconds = step_seconds(step, subject.device)
    step_s, peak = _slowest(subject, seconds, _peak_nbytes(subject.device))
    close()
    if subject.device.type == "cuda":
        torch.cuda.empty_cache()
    torch._dynamo.reset()
    return found | _rates(subject, step_s) | {"largest_peak_bytes": int(peak)}


def _slowest(subject: Subject, *mine: float) -> list[float]:
    """The largest of each number in all processes."""
    found = torch.tensor(mine, dtype=torch.float64, device=subject.device)
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return found.tolist()


def _rates(subject: Subject, step_s: float) -> Row:
    return {"step_s": step_s, "samples_per_s": subject.batch * subject.world / step_s}


def _peak_nbytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def _step_of(
    subject: Subject, way: str, bucket_size: str, x: Tensor, y: Tensor, found: Row
) -> tuple[Step, Callable[[], None]]:
    """A step of a way, and what ends it. A trainer's prediction is `found`."""
    if way in OURS:
        net = subject.net()
        together = subject.stand_in or distributed.group.WORLD
        group = "none" if way == ALONE else together
        optimizer = tvdnn.optim.SGD(lr=RATE, momentum=MOMENTUM)
        how: dict[str, Any] = {"process_group": group, "bucket_size": bucket_size}
        how |= {"shard": "optimizer" if way == SHARDS else None, "budget": subject.budget}
        trainer = tvdnn.Trainer(net, x, optimizer=optimizer, dtype=subject.dtype, **how)
        found["predicted_s"] = _predicted_s(trainer, subject.stand_in)
        found["planned_peak_bytes"] = trainer.schedule.peak_nbytes
        return (lambda: trainer.step(x, y)), trainer.close
    bucket_mb = (parse_bytes(bucket_size) or BUCKET_NBYTES) / MIB
    wrap = partial(DistributedDataParallel, bucket_cap_mb=bucket_mb)
    if way == VIRTUALIZE:
        net = subject.net()
        torchs = sgd(net)
        virtual: Any = tvdnn.virtualize(net, x, dtype=subject.dtype, optimizer=torchs)
        return step_of(wrap(virtual), torchs, x, y, EAGER, "fp32"), virtual.close  # rounds inside
    net = subject.torchs_net().to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    return step_of(wrap(net), sgd(net), x, y, way, subject.dtype), lambda: None


def _predicted_s(trainer: tvdnn.Trainer, stand_in: StandIn | None) -> float:
    """The simulated seconds of a step over the link, also before any sum is measured."""
    if stand_in is None:
        return trainer.predicted.step_s
    costs = CalibratedCosts(trainer.costs, {}, {**trainer.costs.links, RANKS: stand_in.link})
    return simulate(trainer.schedule, costs).step_s


if __name__ == "__main__":
    main()
