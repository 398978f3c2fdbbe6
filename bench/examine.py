"""One network that others wrote, trained beside torch in float64: a row of what came of it."""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final

import timm
import torch
from torch import Tensor, nn
from torchvision import models

import tvdnn
from bench.environment import software
from bench.generated import errors, rule
from bench.generated.case import moved, moved_state
from bench.generated.tf32 import products_in
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load as hardware

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
    """The result of a job."""

    library: str
    name: str
    side: int
    dtype: str
    tokens: bool  # the network has attention or token layers
    outcome: str
    why: str = ""  # the refusal, the exception, or the tensors that are wrong
    median_ratio: float | None = None  # over all tensors, of our error over torch eager's
    tensors: int = 0
    seconds: float = 0.0
    commit: str = ""  # tvdnn's


def row_of(job: Job, outcome: str, why: str = "", **more: Any) -> Row:
    """The row of a job that came to this outcome, at the present commit."""
    about = (job.library, job.name, job.side, job.dtype, job.tokens)
    return Row(*about, outcome, why, commit=software()["commit"], **more)


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
            return row_of(job, "torch fails", "not finite")
        net.load_state_dict(state)
        ours = train(virtual, net, each, torch.float32, lr)
        found = errors.mismatches(ours, exact)
        if found:
            return row_of(job, "wrong", "; ".join(found[:5]))
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
    return row_of(job, "wrong" if wrong else "right", why, median_ratio=ratio, tensors=seen)


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
    """torch's results; in bfloat16 under autocast, with parameters in float32."""
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
