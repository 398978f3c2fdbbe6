"""SGD and AdamW against their references, and these against torch.optim over several steps."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from tests.kernels.numerics import assert_repeatable, poisoned_like, randn, rms_error
from tvdnn.kernels.linear import fused_update as linear_update
from tvdnn.kernels.optim import from_partials as optim_partials
from tvdnn.kernels.optim import update as optim
from tvdnn.kernels.optim.update import (
    adamw,
    adamw_control,
    adamw_many,
    adamw_many_reference,
    adamw_reference,
    sgd,
    sgd_many,
    sgd_many_reference,
    sgd_reference,
)

TOLERANCE = 1e-6
NUM_STEPS = 3


def control_of(
    device: torch.device,
    lr: float = 0.1,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    first: bool = False,
    grad_scale: float = 1.0,
) -> torch.Tensor:
    settings = [lr, momentum, dampening, weight_decay, float(first), grad_scale, 0.0, 0.0]
    return torch.tensor(settings, device=device)


@pytest.mark.parametrize("launch", [sgd, sgd_reference])
@pytest.mark.parametrize(
    ("momentum", "dampening", "nesterov", "weight_decay", "maximize"),
    [
        (momentum, dampening, nesterov, weight_decay, maximize)
        for momentum, dampening, nesterov in [(0, 0, 0), (0.9, 0, 0), (0.9, 0.3, 0), (0.9, 0, 1)]
        for weight_decay, maximize in itertools.product([0.0, 5e-4], [False, True])
    ],
)
def test_follows_torch(
    launch: Callable[..., None],
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: float,
    maximize: bool,
    generator: torch.Generator,
) -> None:
    theirs = randn((33, 65), torch.float32, generator).requires_grad_()
    ours = theirs.detach().clone()
    buffer = poisoned_like(ours) if momentum else None
    settings = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
    peer = torch.optim.SGD([theirs], lr=0.1, nesterov=bool(nesterov), maximize=maximize, **settings)
    for step in range(NUM_STEPS):
        theirs.grad = randn(theirs.shape, torch.float32, generator)
        control = control_of(ours.device, first=step == 0, grad_scale=0.25, **settings)
        launch(ours, theirs.grad * 4, buffer, control, nesterov=bool(nesterov), maximize=maximize)
        peer.step()
        assert rms_error(ours, theirs.detach()) < TOLERANCE
    if buffer is not None:
        assert rms_error(buffer, peer.state[theirs]["momentum_buffer"]) < TOLERANCE


@pytest.mark.parametrize("length", [0, 1, 2047, 2049, 4096])
def test_equals_reference(length: int, generator: torch.Generator) -> None:
    param, grad, buffer = (randn((length,), torch.float32, generator) for _ in range(3))
    expected, expected_buffer = param.clone(), buffer.clone()
    control = control_of(param.device, momentum=0.9, weight_decay=1e-3)
    sgd(param, grad, buffer, control, nesterov=True, maximize=False)
    sgd_reference(expected, grad, expected_buffer, control, nesterov=True, maximize=False)
    assert rms_error(param, expected) < TOLERANCE
    assert rms_error(buffer, expected_buffer) < TOLERANCE


@pytest.mark.parametrize("launch", [adamw, adamw_reference])
@pytest.mark.parametrize(("weight_decay", "maximize"), [(0.0, False), (0.1, False), (0.01, True)])
def test_adamw_follows_torch(
    launch: Callable[..., None], weight_decay: float, maximize: bool, generator: torch.Generator
) -> None:
    theirs = randn((33, 65), torch.float32, generator).requires_grad_()
    ours = theirs.detach().clone()
    mean, square = torch.zeros_like(ours), torch.zeros_like(ours)
    settings = {"lr": 0.01, "betas": (0.8, 0.999), "eps": 1e-6, "weight_decay": weight_decay}
    peer = torch.optim.AdamW([theirs], maximize=maximize, **settings)
    for step in range(1, NUM_STEPS + 1):
        theirs.grad = randn(theirs.shape, torch.float32, generator)
        control = torch.tensor(adamw_control(step=step, grad_scale=0.25, **settings))
        grad = theirs.grad * 4
        launch(ours, grad, mean, square, control.to(ours.device), maximize=maximize)
        peer.step()
        assert rms_error(ours, theirs.detach()) < TOLERANCE
    state = peer.state[theirs]
    assert rms_error(mean, state["exp_avg"]) < TOLERANCE
    assert rms_error(square, state["exp_avg_sq"]) < TOLERANCE


@pytest.mark.parametrize(("one", "many"), [(sgd, sgd_many), (sgd_reference, sgd_many_reference)])
@pytest.mark.parametrize("has_momentum", [False, True])
def test_sgd_of_many(
    one: Callable[..., None],
    many: Callable[..., None],
    has_momentum: bool,
    generator: torch.Generator,
) -> None:
    sizes = [1, 64, 0, 2049, 10, 300, 7, 16, 4096, 5, (1 << 18) + 1]
    params, grads = ([randn((n,), torch.float32, generator) for n in sizes] for _ in range(2))
    momenta = [randn((n,), torch.float32, generator) if has_momentum else None for n in sizes]
    expected = [param.clone() for param in params]
    expected_momenta = [None if m is None else m.clone() for m in momenta]
    control = control_of(grads[0].device, momentum=0.9, weight_decay=1e-3)
    for operands in zip(expected, grads, expected_momenta, strict=True):
        one(*operands, control, nesterov=False, maximize=True)
    many(params, grads, momenta, control, nesterov=False, maximize=True)
    assert all(map(torch.equal, params, expected))
    if has_momentum:
        assert all(map(torch.equal, momenta, expected_momenta))


@pytest.mark.parametrize(
    ("one", "many"), [(adamw, adamw_many), (adamw_reference, adamw_many_reference)]
)
def test_adamw_of_many(
    one: Callable[..., None], many: Callable[..., None], generator: torch.Generator
) -> None:
    sizes = [48, 1000, 3]
    tensors = [[randn((n,), torch.float32, generator).abs() for n in sizes] for _ in range(4)]
    expected = [[tensor.clone() for tensor in kind] for kind in tensors]
    control = torch.full((8,), 0.1, device=tensors[0][0].device)
    for operands in zip(*expected, strict=True):
        one(*operands, control, maximize=False)
    many(*tensors, control, maximize=False)
    for kind, others in zip(tensors, expected, strict=True):
        assert all(map(torch.equal, kind, others))


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("states", [0, 1, 2])
@pytest.mark.parametrize("form", ["", "_many", "_partials", "linear_grad_weight_"])
def test_nothing_changes_under_the_flag(
    form: str, states: int, suffix: str, generator: torch.Generator
) -> None:
    """Not even by gradients that are not finite."""
    adamw, product = states == 2, form.startswith("linear")
    rule = "adamw" if adamw else "sgd"
    name = (form + rule if product else rule + form) + suffix
    launch = getattr(
        {"_partials": optim_partials}.get(form, linear_update if product else optim), name
    )
    before = [randn((8, 40), torch.float32, generator).abs() for _ in range(1 + states)]
    control = torch.full((8,), 0.5, device=generator.device)
    switches = {"maximize": False} | ({} if adamw else {"nesterov": False})
    switches |= {"precision": "ieee"} if product else {}
    for flag in (0.0, 1.0):
        control[7] = flag
        param, *kept = after = [tensor.clone() for tensor in before]
        beside = kept or [None]
        gradient = torch.full_like(param, math.nan if flag else 0.5)
        if product:
            x, dy = (randn((3, size), torch.float32, generator) for size in (40, 8))
            launch(x + gradient[0], dy, param, *beside, control, **switches)
        elif form == "_many":
            launch([param], [gradient], *([each] for each in beside), control, **switches)
        elif form == "_partials":
            launch(param, gradient[None], *beside, control, **switches)
        else:
            launch(param, gradient, *beside, control, **switches)
        same = [torch.equal(one, other) for one, other in zip(before, after, strict=True)]
        assert all(same) if flag else not any(same)


@pytest.mark.gpu
def test_large_offsets(device: torch.device) -> None:
    param = torch.zeros((1 << 31) + 100, device=device)
    grad = torch.ones_like(param)
    sgd(param, grad, None, control_of(device, lr=0.5), nesterov=False, maximize=False)
    assert param[-100:].eq(-0.5).all()
    assert param[:100].eq(-0.5).all()


@pytest.mark.gpu
def test_repeats(generator: torch.Generator) -> None:
    start, grad = (randn((100003,), torch.float32, generator) for _ in range(2))
    param, control = poisoned_like(start), control_of(start.device)

    def launch() -> None:
        param.copy_(start)
        sgd(param, grad, None, control, nesterov=False, maximize=False)

    assert_repeatable(launch, param)
