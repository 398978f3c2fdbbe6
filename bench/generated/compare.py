"""compare: a case by torch in float64, by torch in its type, and by tvdnn; what came of it."""

import copy
import re
import traceback
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

import tvdnn
from bench.generated import errors, rule
from bench.generated.case import Case, Data, data_of
from bench.generated.runs import (
    EXACT,
    STEPS,
    Form,
    Seen,
    as_given,
    learning_rate,
    loop,
    loop_of_losses,
    loss_of,
    optimizer_of,
    output_shape,
    torch_net,
    trainer_steps,
)
from bench.generated.tf32 import products_in
from tvdnn.errors import BudgetError, InputError, UnsupportedOpError
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load as hardware

RIGHT, WRONG, REFUSED, FAILED, TORCH = "right", "wrong", "refused", "failed", "torch fails"
TORCH_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
REFUSALS = (UnsupportedOpError, InputError)
# A refusal that passes on an exception of another kind, as "Net: KeyError: 'x' at file:line".
FOREIGN = re.compile(r": ([A-Z]\w*(?:Error|Exception): .*?)(?: at \S+:\d+)?$", re.MULTILINE)
ROOT = Path(tvdnn.__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of comparing one network with torch."""

    kind: str
    why: str = ""  # names the exception, or the first tensor that is wrong
    details: tuple[str, ...] = ()
    ratios: tuple[float, ...] = ()  # of each tensor, our error over eager's where both have one

    @property
    def is_fault(self) -> bool:
        return self.kind in (WRONG, FAILED)


@dataclass(frozen=True, slots=True)
class Setup:
    """The type and device of a comparison, and how steps are ordered on the CPU."""

    dtype: str = "fp32"
    device: str = "cpu"
    order_seed: int | None = 1

    @property
    def form(self) -> Form:
        return self.device, TORCH_TYPES[self.dtype]


def compare(case: Case, setup: Setup = Setup()) -> Outcome:
    """Whether tvdnn computes what torch does, by the rule, under keep and another policy."""
    try:
        references = _references(case, setup)
    except Exception as error:  # noqa: BLE001
        return Outcome(TORCH, f"{type(error).__name__}: {_first_line(error)}")
    if not all(
        errors.is_finite(each.exact) and errors.is_finite(each.eager) for each in references
    ):
        return Outcome(TORCH, "not finite")
    try:
        return _compared(case, setup, references)
    except REFUSALS as error:
        foreign = FOREIGN.search(str(error))
        if foreign or _is_told_wrongly(error, case):
            return Outcome(FAILED, foreign[1] if foreign else str(error))
        return Outcome(REFUSED, str(error))
    except Exception as error:  # noqa: BLE001
        trace = traceback.format_exc()
        return Outcome(FAILED, f"{type(error).__name__} at {_place(error)}", (trace,))


def _is_told_wrongly(error: Exception, case: Case) -> bool:
    """Whether an error blames inputs that torch takes, in a network that nothing changes later."""
    return isinstance(error, InputError) and "between" not in case.settings


def _references(case: Case, setup: Setup) -> list["_Reference"]:
    """torch's results for each data seed, at one learning rate."""
    rounded = setup.dtype == "bf16"
    data = [data_of(case, seed, steps=STEPS, rounded=rounded) for seed in rule.DATA_SEEDS]
    lr = learning_rate(case, data[0])
    return [_Reference(case, setup, each, lr) for each in data]


class _Reference:
    """torch's results for one data seed, in float64 and in the type of the comparison."""

    def __init__(self, case: Case, setup: Setup, data: Data, lr: float) -> None:
        self.case, self.setup, self.data, self.lr = case, setup, data, lr
        self.exact = self.run(EXACT)
        self.eager = self._run_eager(data)
        found = errors.mismatches(self.eager, self.exact)
        if found:
            raise ValueError(f"torch by itself: {found[0]}")

    def run(self, form: Form, data: Data | None = None) -> Seen:
        steps = loop_of_losses if "trainer" in self.case.settings else loop
        data = data or self.data
        return steps(torch_net(self.case, data, form), self.case, data, form, lr=self.lr)

    def largest_errors(self, eager: Mapping[str, float]) -> Mapping[str, float]:
        """The largest errors of EAGER_RUNS runs of eager. `eager` holds the first run's."""
        moved = (self.data.moved(self.setup.dtype, seed) for seed in range(rule.EAGER_RUNS - 1))
        return errors.largest(eager, map(self._run_eager, moved), self.exact)

    def _run_eager(self, data: Data) -> Seen:
        with products_in(self.setup.dtype):
            return self.run(self.setup.form, data)


def _compared(case: Case, setup: Setup, references: list[_Reference]) -> Outcome:
    with closing(_Ours(case, setup, references[0], policy="keep")) as keep:
        return _compared_with(keep, case, setup, references)


def _compared_with(
    keep: "_Ours", case: Case, setup: Setup, references: list[_Reference]
) -> Outcome:
    counts: dict[str, int] = {}
    ratios: list[float] = []
    details: dict[str, str] = {}
    first: Seen = {}
    for reference in references:
        seen = keep.run(reference)
        first = first or seen
        found = errors.mismatches(seen, reference.exact)
        if found:
            return Outcome(WRONG, _kind_of(found[0]), tuple(found))
        ours = errors.differences(seen, reference.exact)
        eager = errors.differences(reference.eager, reference.exact)
        ratios += [error / eager[name] for name, error in ours.items() if eager[name] and error]
        for name, detail in _beyond(reference, ours, eager, setup).items():
            counts[name] = counts.get(name, 0) + 1
            details[name] = detail
    wrong = [name for name, count in counts.items() if count >= rule.SEEDS_BEYOND]
    if wrong:
        wrong.sort(key=lambda name: "form" in name or "requires_grad" in name)
        shown = tuple(details[name] for name in wrong)
        return Outcome(WRONG, _kind_of(wrong[0]), shown, tuple(ratios))
    different = _different_bits(case, setup, references[0], keep, first)
    if different:
        policy = case.settings["policy"]
        return Outcome(WRONG, f"other bits under {policy}", tuple(different), tuple(ratios))
    return Outcome(RIGHT, ratios=tuple(ratios))


def _beyond(
    reference: _Reference, ours: Mapping[str, float], eager: Mapping[str, float], setup: Setup
) -> dict[str, str]:
    """The tensors beyond the rule's bound, each with its numbers.

    More runs of eager, and terms, are measured only where a tensor is beyond the bound without.
    """
    exact = reference.exact
    scales = errors.scales(exact, {})
    names = errors.beyond(ours, eager, scales, setup.dtype)
    if names:
        eager = reference.largest_errors(eager)
        of_terms = errors.terms(partial(reference.run, EXACT), exact)
        scales = errors.scales(exact, of_terms)
        names = errors.beyond(ours, eager, scales, setup.dtype)
    return {
        name: f"{name}: error {ours[name]:.2e}, eager's {eager[name]:.2e}, scale {scales[name]:.2e}"
        for name in names
    }


def _different_bits(
    case: Case, setup: Setup, reference: _Reference, keep: "_Ours", kept: Seen
) -> list[str]:
    """The tensors of which another policy leaves other bits than keep."""
    policy, share = case.settings["policy"], case.settings.get("budget")
    if share is None:
        other = _Ours(case, setup, reference, policy=policy)
    else:
        other = _near_floor(case, setup, reference, policy, share, keep.peak_nbytes)
    with closing(other):
        seen = other.run(reference)
    return [
        name
        for name, value in kept.items()
        if value is not None and not torch.equal(value, seen[name])  # type: ignore[arg-type]
    ]


def _near_floor(
    case: Case, setup: Setup, reference: _Reference, policy: str, share: float, peak: int
) -> "_Ours":
    """Inside a budget that lies this share of the way from the policy's floor to keep's peak."""
    try:
        return _Ours(case, setup, reference, policy=policy, budget=1)
    except BudgetError as error:
        floor = error.floor_nbytes
    budget = floor + max(0, int(share * (peak - floor)))
    return _Ours(case, setup, reference, policy=policy, budget=budget)


class _Ours:
    """The case as tvdnn runs it under one policy, planned once for all data seeds."""

    def __init__(self, case: Case, setup: Setup, reference: _Reference, **planned: Any) -> None:
        self.case, self.setup, self.planned = case, setup, planned
        self.used = False
        self.net = _made(case, setup, reference.data)
        options: dict[str, Any] = planned | {
            "dtype": setup.dtype,
            "sections": case.settings.get("sections"),
            "chunk_size": case.settings.get("chunk_size"),
            "order_seed": setup.order_seed if setup.device == "cpu" else None,
            "feedback": False,
        }
        if setup.device != "cpu":
            options["costs"] = Roofline(hardware("H200"), setup.dtype)
        given = (x.to(setup.device, copy=True) for x in reference.data.inputs[0])
        inputs = tuple(as_given(case, x) for x in given)
        for name, x in zip(case.shapes, inputs, strict=True):
            x.requires_grad_(name in case.grads)
        if "trainer" in case.settings:
            self.trainer = self._make_trainer(reference, options)
            self.initial = copy.deepcopy(self.trainer.state_dict())
            self.peak_nbytes = self.trainer.schedule.peak_nbytes
        else:
            opaque = case.settings.get("opaque", False)
            self.virtual = tvdnn.virtualize(self.net, inputs, opaque=opaque, **options)
            self.peak_nbytes = self.virtual.schedule.peak_nbytes

    def run(self, reference: _Reference) -> Seen:
        case, data, form = self.case, reference.data, (self.setup.device, torch.float32)
        if self.used and "between" in case.settings:  # the network is not what it was
            with closing(_Ours(case, self.setup, reference, **self.planned)) as fresh:
                return fresh.run(reference)
        self.used = True
        if "trainer" in case.settings:
            self.trainer.load_state_dict(self.initial | {"model": data.state})
            return trainer_steps(self.trainer, case, data)
        _loaded(self.net, data)
        seen = loop(self.virtual, case, data, form, lr=reference.lr)
        modes = self.case.make()  # evaluation has changed modes, which setup may have set apart
        mine = dict(self.net.named_modules(remove_duplicate=False))
        for name, made in modes.named_modules():
            mine[name].training = made.training
        self.virtual.training = modes.training
        return seen

    def close(self) -> None:
        """Give back arena and slab."""
        (self.trainer if "trainer" in self.case.settings else self.virtual).close()

    def _make_trainer(self, reference: _Reference, options: Mapping[str, Any]) -> tvdnn.Trainer:
        case, data = self.case, reference.data
        weights = case.settings["trainer"].get("loss_weights")
        return tvdnn.Trainer(
            self.net,
            data.inputs[0][0].to(self.setup.device),
            loss=loss_of(case, output_shape(case, data)),
            loss_weights=weights,
            optimizer=optimizer_of(case, reference.lr, tvdnn.optim)(),
            **options,
        )


def _made(case: Case, setup: Setup, data: Data) -> nn.Module:
    """The network with its weights. Lazy layers have none yet.

    In bfloat16 its parameters are bfloat16, too, where the case's settings ask for it.
    """
    net = case.make().to(setup.device)
    if case.settings.get("parameters") == "bfloat16" and setup.dtype == "bf16":
        for param in net.parameters():
            param.data = param.data.bfloat16()
    lazy = any(is_lazy(param) for param in net.parameters())
    return net if lazy else _loaded(net, data)


def _loaded(net: nn.Module, data: Data) -> nn.Module:
    net.load_state_dict(data.state)
    return net


def _kind_of(tensor: str) -> str:
    """A message without its step and name, such as "gradient is None"."""
    found = re.match(
        r"(?:step \d+ )?(output in eval mode|gradient of input|\w+)(?: [\w.]+)??(?: (is .*))?$",
        tensor,
    )
    return " ".join(part for part in found.groups() if part) if found else tensor


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _place(error: Exception) -> str:
    """The innermost function of this project that an exception passed through, and its message."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if Path(each.filename).is_relative_to(ROOT)]
    last = ours[-1]
    place = f"{Path(last.filename).relative_to(ROOT)} {last.name}"
    return f"{place}: {_first_line(error)}"
