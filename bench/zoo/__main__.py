"""The zoo's networks by tvdnn beside torch eager and torch.compile: time, memory, first step.

    python -m bench.zoo -o bench/results/zoo
    python -m bench.zoo --torch --seconds 590 --gpus 4 --jobs 7 -o bench/results/zoo
    python -m bench.zoo --nets resnet50 rexnet_100 --ours --ways auto virtualize -o FOLDER

networks.json lists the networks, with batches and sizes of images. A process trains one network by
torch, another by tvdnn, each with empty caches. torch is eager, and torch.compile by default and
with CUDA graphs ("reduce-overhead"), with fused SGD with momentum, channels_last and cuDNN's search
for algorithms; parameters are float32, in bf16 under autocast. A first step over 180 s is ended.
tvdnn is `Trainer` under auto without a budget and in half of torch.compile's memory, and under
keep; where `--ways` says so, also `virtualize` in a loop of torch's own. Processes compile and plan
side by side. All but one stop while that one is measured. A way that fails has a row with its
error, but one that lacks memory beside others is left for another run, with `--jobs 1`. Each of
`--gpus` has its share of the networks and of the cores.

FOLDER has two files for each kind of GPU. Rows are written as they come. Those that are there stay:
torch's for its versions, ours for their commit. Three anchors of torch's are measured once more in
every run, that is until the machine starts anew. The command ends with status 1 where one is off by
more than 3%. With `--seconds` it ends in time, with the rows that are there.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Final

from bench.command_line import parser_of
from bench.environment import environment
from bench.side_by_side import SideBySide
from bench.zoo.clock import without_stops
from bench.zoo.networks import NAMES, network_named
from bench.zoo.rows import (
    HALF,
    SLOW_S,
    TORCH,
    TORCHS_WAYS,
    TVDNN,
    TVDNNS_WAYS,
    USUAL,
    Row,
    RowFile,
    agreements,
    anchors_to_measure,
    commit_of,
    compiled_nbytes,
    found,
    of_gpu,
    release_of,
)

POLL_S: Final = 0.5
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
CACHES: Final = ("TRITON_CACHE_DIR", "TVDNN_CACHE", "TORCHINDUCTOR_CACHE_DIR")
NO_MEMORY: Final = "out of memory"


@dataclass(frozen=True, slots=True)
class Job:
    """Ways to train a network, which one process measures in turn."""

    net: str
    ways: tuple[str, ...]
    dtype: str
    half_bytes: int | None = None  # half of torch.compile's memory


def main() -> None:
    options = _options()
    zoo = Zoo(options, environment() | libraries(), BOOT.read_text().strip())
    begun_s, gpus, waiting = time.monotonic(), list(_gpus(options.gpus)), set[Future[None]]()
    with ExitStack() as pools:
        for number, children in enumerate(gpus):
            pool = pools.enter_context(ThreadPoolExecutor(options.jobs))
            if number == 0:
                waiting.add(pool.submit(zoo.measure_anchors, children))
            nets = options.nets[number :: len(gpus)]
            waiting |= {pool.submit(zoo.measure, children, net) for net in nets}
        while waiting:
            done, waiting = wait(waiting, timeout=POLL_S)
            for each in done:
                each.result()
            for children in gpus:
                children.end_late(SLOW_S)
                if time.monotonic() - begun_s > options.seconds:
                    children.end()
    sys.exit(not zoo.agrees())


def _gpus(count: int) -> Iterator[SideBySide]:
    """The processes of so many GPUs, each with its share of this process's cores."""
    if count == 1:
        yield SideBySide()
        return
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // count
    for gpu in range(count):
        yield SideBySide(gpu, cores[gpu * share :][:share])


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--dtype", choices=("bf16", "tf32"), default="bf16")
    parser.add_argument("--torch", action="store_true", help="torch's rows alone")
    parser.add_argument("--ours", action="store_true", help="our rows alone")
    parser.add_argument("--ways", nargs="+", default=USUAL, choices=TVDNNS_WAYS, help="of ours")
    parser.add_argument("--gpus", type=int, default=1, help="of the machine, all of one kind")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side on a GPU")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which the command ends")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder")
    return parser.parse_args()


def libraries() -> dict[str, str]:
    return {name: version(name) for name in ("torchvision", "timm")}


class Zoo:
    """The rows of a run, and those that are still to be measured."""

    def __init__(self, options: argparse.Namespace, about: dict[str, str], run: str) -> None:
        self.options, self._about, self._run = options, about, run
        gpu = of_gpu(about["gpu"])
        options.output.mkdir(parents=True, exist_ok=True)
        self.torchs = RowFile(options.output / f"{TORCH}_{gpu}.json")
        self.tvdnns = RowFile(options.output / f"{TVDNN}_{gpu}.json")
        self._writing = Lock()

    @property
    def torchs_rows(self) -> list[Row]:
        """torch's rows of the present versions."""
        now = release_of({"environment": self._about})
        return [row for row in self.torchs.rows if release_of(row) == now]

    @property
    def tvdnns_rows(self) -> list[Row]:
        """Our rows of the present commit and versions."""
        now = commit_of({"environment": self._about})
        return [row for row in self.tvdnns.rows if commit_of(row) == now]

    def measure_anchors(self, children: SideBySide) -> None:
        """Measure torch's rows of the anchors again, as far as they are from earlier runs."""
        dtype = self.options.dtype
        for net, way in list(anchors_to_measure(self.torchs_rows, dtype, self._run)):
            for row in rows_of(children, Job(net, (way,), dtype)):
                self._add(self.torchs, {**row, "again_in": self._run})

    def measure(self, children: SideBySide, net: str) -> None:
        """Measure what a network's rows lack."""
        dtype, only_torch, only_ours = self.options.dtype, self.options.torch, self.options.ours
        if only_torch or not only_ours:
            ways = self._lacking(self.torchs_rows, net, TORCHS_WAYS)
            for row in rows_of(children, Job(net, ways, dtype)):
                self._add(self.torchs, row)
        if only_ours or not only_torch:
            compiled = compiled_nbytes(self.torchs_rows, net, dtype)
            ours = [way for way in self.options.ways if compiled or way != HALF]
            ways = self._lacking(self.tvdnns_rows, net, ours)
            for row in rows_of(children, Job(net, ways, dtype, compiled and compiled // 2)):
                self._add(self.tvdnns, row)

    def _lacking(self, rows: Sequence[Row], net: str, ways: Sequence[str]) -> tuple[str, ...]:
        dtype = self.options.dtype
        return tuple(way for way in ways if found(rows, net, way, dtype) is None)

    def _add(self, file: RowFile, row: Row) -> None:
        row = {**row, "run": self._run, "environment": self._about}
        print(json.dumps(row), file=sys.stderr, flush=True)
        if self.options.jobs > 1 and NO_MEMORY in row.get("error", ""):
            return
        with self._writing:
            file.add(row)

    def agrees(self) -> bool:
        """Whether all anchors take as long as before, which is told."""
        known = list(agreements(self.torchs_rows, self.options.dtype, self._run))
        for kept, row, agrees in known:
            now = f"{1e3 * row['step_s']:.2f} ms" if "step_s" in row else row["error"]
            verdict = "agrees" if agrees else "DIFFERS"
            before = f"{1e3 * kept['step_s']:.2f} ms before"
            print(f"anchor {row['net']}, {row['way']}: {now}, {before}: {verdict}")
        return all(agrees for *_, agrees in known)


def rows_of(children: SideBySide, job: Job) -> Iterator[Row]:
    """The rows of a job's ways. One that ends its process has a row with the error."""
    about = asdict(network_named(job.net)) | {"dtype": job.dtype}
    left = list(job.ways)
    with TemporaryDirectory() as folder:
        caches = os.environ | {name: f"{folder}/{name}" for name in CACHES}
        while left and not children.ended:
            try:
                for row in _measured(children, job, left, caches):
                    state = "empty" if len(left) == len(job.ways) else "warm"
                    yield {**about, "way": left.pop(0), "caches": state, **row}
            except ChildProcessError as error:
                yield {**about, "way": left.pop(0), "error": str(error)}
            except TimeoutError:
                if not children.ended:
                    yield {**about, "way": left.pop(0), "error": f"over {SLOW_S:.0f} s"}


def _measured(
    children: SideBySide, job: Job, ways: Sequence[str], caches: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """The rows that one process prints, their first steps without the time it was stopped."""
    asked = json.dumps({**asdict(job), "ways": list(ways)})
    for child, line in children.lines([sys.executable, "-m", "bench.zoo.job", asked], caches):
        if not line.startswith("{"):
            sys.stderr.write(line)
            continue
        yield without_stops(json.loads(line), child.stopped_s)


if __name__ == "__main__":
    main()
