"""Networks that others wrote, unchanged, beside torch in float64: right, or refused by name.

    python -m bench.others --dtype fp32 bf16 --processes 12 -o bench/results/networks/others.json

The list, bench/others_models.json, holds every classification and segmentation model of torchvision
and the smallest model of every module of timm that contains a convolution, each with two sizes of
images. Weights are random. Dropout and stochastic depth are set to zero, since their draws are not
torch's. Each network trains two steps of SGD with momentum; outputs, gradients, running statistics
and the second step are held against float64 by the rule of bench/generated/rule.py.

Each network runs in a process of its own, forked from one that has loaded the libraries, so that
one that crashes or hangs is a row of its own. Rows that the output file has are kept, and not run
again.
"""

import argparse
import copy
import json
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any, Final

import timm
import torch
from torch import Tensor, nn
from torchvision import models

import tvdnn
from bench.environment import environment, software
from bench.generated import errors, rule
from bench.generated.case import moved, moved_state
from bench.generated.tf32 import products_in
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load as hardware

LIST: Final = Path(__file__).with_name("others_models.json")
BATCH: Final = 4
STEPS: Final = 2
SHARE: Final = 0.02  # of the parameters' RMS: how much the first update changes them
DROPS: Final = ("p", "drop_prob", "drop_path_prob", "drop_rate")
TYPES: Final = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
SHOWN: Final = 4  # wrong tensors of a row
Seen = dict[str, Tensor | None]


@dataclass(frozen=True, slots=True)
class Job:
    """One network of the list at one size of images and in one type."""

    library: str
    name: str
    side: int
    dtype: str
    device: str
    tokens: bool


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a job.

    `why` is the refusal, the exception, or the tensors that are wrong. `median_ratio` is the median
    of our error over torch eager's over all tensors. `tokens` marks networks with attention or
    token layers. `commit` is tvdnn's.
    """

    library: str
    name: str
    side: int
    dtype: str
    tokens: bool
    outcome: str
    why: str = ""
    median_ratio: float | None = None
    tensors: int = 0
    seconds: float = 0.0
    commit: str = ""


def main() -> None:
    options = _options()
    rows = _rows_in(options.output)
    done = {_key(row) for row in rows}
    jobs = [job for job in _jobs(options) if _key(job) not in done]
    begin = time.monotonic()
    for row in run_all(jobs, options.processes, options.seconds, begin + options.total_seconds):
        rows.append(row)
        ratio = "" if row.median_ratio is None else f" x{row.median_ratio:.2f}"
        print(f"{row.outcome:8s} {row.dtype} {row.name}@{row.side}{ratio} {row.why}", flush=True)
        _write(options.output, rows, len(done) + len(jobs), {})
    about = software() if _is_cpu() else environment()  # last: CUDA starts, and forks end
    _write(options.output, rows, len(done) + len(jobs), about)
    print(dict(Counter(row.outcome for row in rows)), f"of {len(done) + len(jobs)}", flush=True)


def _key(of: Job | Row) -> tuple[str, str, int, str]:
    return of.library, of.name, of.side, of.dtype


def _jobs(options: argparse.Namespace) -> list[Job]:
    """All networks at their first size of images, in each type, then all at their second."""
    listed = json.loads(LIST.read_text())
    if options.only is not None:
        listed = [each for each in listed if each["name"] in options.only]
    return [
        Job(
            each["library"],
            each["name"],
            each["sides"][number],
            dtype,
            options.device,
            each["tokens"],
        )
        for number in range(options.sizes)
        for each in listed
        for dtype in options.dtype
        for side in each["sides"][number : number + 1]
    ]


def _rows_in(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text())["rows"]] if path.exists() else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", nargs="+", choices=TYPES, default=["fp32", "bf16"])
    parser.add_argument("--device", default="cpu" if _is_cpu() else "cuda")
    parser.add_argument("--only", nargs="+", help="names of models; all where not given")
    parser.add_argument("--sizes", type=int, default=2, help="sizes of images of each network")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300, help="the most for one network")
    parser.add_argument("--total-seconds", type=float, default=1e9, help="no job starts after them")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args()


def _write(path: Path, rows: Sequence[Row], jobs: int, about: Mapping[str, str]) -> None:
    ratios = {
        dtype: median(found)
        for dtype in TYPES
        if (found := [r.median_ratio for r in rows if r.dtype == dtype and r.median_ratio])
    }
    document = {
        "title": "Networks of torchvision and timm beside torch in float64",
        "note": "Right or wrong by the rule of bench/generated/rule.py; weights are random.",
        "environment": about,
        "counts": dict(Counter(row.outcome for row in rows)),
        "jobs": jobs,
        "median_ratio": ratios,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _is_cpu() -> bool:
    return not Path("/dev/nvidia0").exists()


def run_all(jobs: Sequence[Job], processes: int, seconds: float, end: float) -> Iterator[Row]:
    """The rows of the jobs, each in a forked process that may take so many seconds."""
    context = get_context("fork")
    waiting, running = list(reversed(jobs)), dict[Connection, tuple[Job, Any, float]]()
    while waiting or running:
        while waiting and len(running) < processes and time.monotonic() < end:
            job = waiting.pop()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(job, sender), daemon=True)
            process.start()
            sender.close()
            running[receiver] = job, process, time.monotonic()
        if not running:
            return
        ready = wait(list(running), timeout=1.0)
        for receiver, (job, process, began) in list(running.items()):
            late = time.monotonic() - began > seconds
            if receiver not in ready and not late:
                continue
            del running[receiver]
            yield _answer(job, receiver, process, began, late=late and receiver not in ready)


def _answer(job: Job, receiver: Connection, process: Any, began: float, *, late: bool) -> Row:
    took = time.monotonic() - began
    row = None
    if not late:
        with suppress(EOFError):
            row = receiver.recv()
    process.kill()
    process.join()
    if row is not None:
        return row
    why = f"no answer in {took:.0f} s" if late else f"the process ended: {process.exitcode}"
    return _row(job, "failed", why, seconds=took)


def _row(job: Job, outcome: str, why: str = "", **more: Any) -> Row:
    about = (job.library, job.name, job.side, job.dtype, job.tokens)
    return Row(*about, outcome, why, commit=software()["commit"], **more)


def _child(job: Job, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    began = time.monotonic()
    try:
        row = examine(job)
    except (UnsupportedOpError, InputError) as error:
        row = _row(job, "refused", str(error).split("\nsupported:")[0][:600])
    except Exception as error:  # noqa: BLE001
        row = _row(job, "failed", f"{type(error).__name__}: {error}"[:600])
    seconds = time.monotonic() - began
    sender.send(Row(**{**asdict(row), "seconds": round(seconds, 1)}))
    sender.close()


def examine(job: Job) -> Row:
    """Train the network by tvdnn and by torch, and compare."""
    net = make(job).to(job.device)
    data = [_Data(job, seed) for seed in rule.DATA_SEEDS]
    options: dict[str, Any] = {"dtype": job.dtype, "feedback": False}
    if job.device != "cpu":
        options["costs"] = Roofline(hardware("H200"), job.dtype)
    state = copy.deepcopy(net.state_dict())
    virtual = tvdnn.virtualize(net, data[0].inputs[0], **options)
    lr = _learning_rate(job, state, data[0])
    counts: Counter[str] = Counter()
    ratios: list[float] = []
    seen = 0
    details: dict[str, str] = {}
    for number, each in enumerate(data):
        exact = _torchs(job, state, each, torch.float64, lr)
        with products_in(job.dtype):
            eager = _torchs(job, state, each, TYPES[job.dtype], lr)
        if not errors.is_finite(exact) or not errors.is_finite(eager):
            return _row(job, "torch fails", "not finite")
        net.load_state_dict(state)
        ours = train(virtual, net, each, torch.float32, lr)
        found = errors.mismatches(ours, exact)
        if found:
            return _row(job, "wrong", "; ".join(found[:5]))
        mine, theirs = errors.differences(ours, exact), errors.differences(eager, exact)
        ratios += [error / theirs[name] for name, error in mine.items() if theirs[name] and error]
        seen = len(mine)
        scales = errors.scales(exact, {})
        if errors.beyond(mine, theirs, scales, job.dtype):
            theirs = _largest(job, state, each, lr, exact, theirs)
            terms = errors.terms(partial(_torchs, job, state, each, torch.float64, lr), exact)
            scales = errors.scales(exact, terms)
        for name in errors.beyond(mine, theirs, scales, job.dtype):
            counts[name] += 1
            numbers = (mine[name], theirs[name], scales[name])
            details[name] = f"{name}: {{:.1e}}, eager's {{:.1e}} of {{:.1e}}".format(*numbers)
        left = len(data) - number - 1
        if not any(count + left >= rule.SEEDS_BEYOND for count in counts.values()):
            break  # no tensor can be beyond the bound at enough seeds any more
    wrong = [name for name, count in counts.items() if count >= rule.SEEDS_BEYOND]
    why = "; ".join(details[name] for name in wrong[:SHOWN])
    why += f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    ratio = median(ratios) if ratios else None
    return _row(job, "wrong" if wrong else "right", why, median_ratio=ratio, tensors=seen)


def _largest(
    job: Job,
    state: Mapping[str, Tensor],
    data: "_Data",
    lr: float,
    exact: Seen,
    theirs: Mapping[str, float],
) -> Mapping[str, float]:
    """Eager's error, as bench/generated/rule.py says of EAGER_RUNS."""

    def runs() -> Iterator[Seen]:
        for seed in range(rule.EAGER_RUNS - 1):
            weights, images = moved_state(state, job.dtype, seed), data.moved(job.dtype, seed)
            with products_in(job.dtype):
                yield _torchs(job, weights, images, TYPES[job.dtype], lr)

    return errors.largest(theirs, runs(), exact)


def make(job: Job) -> nn.Module:
    """The network with random weights and no dropout."""
    torch.manual_seed(0)
    if job.library == "timm":
        net = timm.create_model(job.name)
    else:
        options: dict[str, Any] = {"weights": None}
        if job.library.endswith("segmentation"):
            options["weights_backbone"] = None
        if job.name in ("googlenet", "inception_v3"):
            options["init_weights"] = False  # theirs takes a minute
        net = models.get_model(job.name, **options)
    for module in net.modules():
        for name in DROPS:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return net.train()


class _Data:
    """Images, and the gradients of outputs, in values that bfloat16 holds."""

    def __init__(self, job: Job, seed: int) -> None:
        self.device = job.device
        generator = torch.Generator().manual_seed(seed)
        shape = (BATCH, 3, job.side, job.side)
        images = (torch.randn(shape, generator=generator).bfloat16() for _ in range(STEPS))
        self.inputs = [each.float().to(job.device) for each in images]
        self.seed = seed

    def moved(self, dtype: str, seed: int) -> "_Data":
        """The same data, images moved by half a unit of rounding."""
        twin = copy.copy(self)
        twin.inputs = [moved(x, dtype, seed, i) for i, x in enumerate(self.inputs)]
        return twin

    def gradient(self, step: int, number: int, shape: torch.Size) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + 10 * step + number)
        drawn = torch.randn(shape, generator=generator).bfloat16().float()
        return drawn.to(self.device)


def _torchs(
    job: Job, state: Mapping[str, Tensor], data: _Data, kind: torch.dtype, lr: float
) -> Seen:
    """What torch makes of it; in bfloat16 under autocast, with parameters in float32."""
    net = make(job).to(job.device)
    net.load_state_dict(state)
    wide = kind if kind == torch.float64 else torch.float32
    with torch.autocast(job.device, torch.bfloat16, enabled=kind == torch.bfloat16):
        return train(net.to(wide), net, data, wide, lr)


def train(run: nn.Module, net: nn.Module, data: _Data, kind: torch.dtype, lr: float) -> Seen:
    """Two steps of `run`, whose parameters are those of `net`, and all that they leave."""
    seen: Seen = {}
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for step, images in enumerate(data.inputs):
        optimizer.zero_grad(set_to_none=True)
        outputs = _named(run(images.to(kind)))
        losses = []
        for number, (name, out) in enumerate(outputs.items()):
            seen[f"step {step + 1} output {name}"] = _kept(out)
            losses.append((out.to(kind) * data.gradient(step, number, out.shape)).sum())
        torch.stack(losses).sum().backward()
        for name, param in net.named_parameters():
            seen[f"step {step + 1} gradient {name}"] = _kept(param.grad)
        for name, buffer in net.named_buffers():
            seen[f"step {step + 1} buffer {name}"] = _kept(buffer)
        optimizer.step()
    return seen


def _learning_rate(job: Job, state: Mapping[str, Tensor], data: _Data) -> float:
    """The rate at which a step changes the parameters by a SHARE of them, in float32."""
    net = make(job).to(job.device)
    net.load_state_dict(state)
    train(net, net, data, torch.float32, 0.0)
    params = [param for param in net.parameters() if param.grad is not None]
    weights = sum(float(param.detach().square().sum()) for param in params)
    grads = sum(float(param.grad.square().sum()) for param in params if param.grad is not None)
    return SHARE * (weights / grads) ** 0.5 if grads else SHARE


def _named(found: Any) -> dict[str, Tensor]:
    if isinstance(found, Tensor):
        return {"out": found}
    if hasattr(found, "_asdict"):
        found = found._asdict()
    named = found.items() if isinstance(found, Mapping) else enumerate(found)
    return {str(name): value for name, value in named if value is not None}


def _kept(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.detach().double().clone()


if __name__ == "__main__":
    main()
