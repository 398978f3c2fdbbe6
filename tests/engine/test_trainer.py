"""Trainer against torch's own loop, its state, and what it refuses."""

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tvdnn
from tests.support.running import Batch, random_batches
from tvdnn.engine import Trainer
from tvdnn.errors import BudgetError, EngineError, HostMemoryError, InputError
from tvdnn.kernels.pointwise import activation
from tvdnn.optim import SGD, AdamW
from tvdnn.planner.make import floor_of
from tvdnn.planner.policies import POLICIES

pytestmark = pytest.mark.usefixtures("units_of_one", "few_trials")

RTOL, ATOL = 1e-4, 1e-6  # of parameters after four steps, relative to fp32's 1.2e-7 a rounding
BATCH, SHAPE, CLASSES = 6, (3, 10, 10), 5
MOMENTUM = SGD(lr=0.05, momentum=0.9)
CHUNK_SIZE = 3000  # bytes: one to four samples a section
OPTIMIZERS = {
    "plain": SGD(0.05),
    "momentum": SGD(0.05, momentum=0.9),
    "dampening": SGD(0.05, momentum=0.9, dampening=0.3),
    "nesterov": SGD(0.05, momentum=0.9, nesterov=True),
    "decay": SGD(0.05, momentum=0.5, weight_decay=0.1),
    "maximize": SGD(0.05, momentum=0.5, maximize=True),
    "adamw": AdamW(0.01),
    "adamw, other settings": AdamW(0.002, (0.8, 0.95), 1e-6, weight_decay=0.3),
    "adamw, maximize": AdamW(0.002, maximize=True),
}


def make_net(seed: int = 0) -> nn.Sequential:
    """Convolutions, poolings, normalization and two linear layers, without dropout."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.LocalResponseNorm(3),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 3, groups=2, bias=False),
        nn.ReLU(),
        nn.AvgPool2d(3),
        nn.Flatten(),
        nn.Linear(6, 16),
        nn.ReLU(),
        nn.Linear(16, CLASSES),
    )


def batches_of(count: int, size: int = BATCH, seed: int = 1) -> list[Batch]:
    return random_batches(count, (size, *SHAPE), CLASSES, seed)


def trainer_of(net: nn.Module, **options: Any) -> Trainer:
    options = {"optimizer": MOMENTUM, "chunk_size": CHUNK_SIZE} | options
    return Trainer(net, torch.empty(BATCH, *SHAPE), **options)


def torch_step(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, **loss: Any
) -> Tensor:
    optimizer.zero_grad()
    value = functional.cross_entropy(net(x), y, **loss)
    value.backward()
    optimizer.step()
    return value.detach()


def torch_optimizer(spec: SGD | AdamW, net: nn.Module) -> torch.optim.Optimizer:
    kind = torch.optim.SGD if isinstance(spec, SGD) else torch.optim.AdamW
    return kind([p for p in net.parameters() if p.requires_grad], **asdict(spec))


def assert_same_training(
    net: nn.Module, batches: Sequence[Batch], spec: SGD | AdamW = MOMENTUM, **options: Any
) -> None:
    """Train `net` by a Trainer and a copy by torch; losses and parameters agree to rounding."""
    twin = copy.deepcopy(net)
    optimizer = torch_optimizer(spec, twin)
    trainer = trainer_of(net, optimizer=spec, **options)
    for x, y in batches:
        expected = torch_step(twin, optimizer, x, y)
        torch.testing.assert_close(trainer.step(x, y), expected, rtol=RTOL, atol=ATOL)
    assert_same_parameters(net, twin)


def assert_same_parameters(net: nn.Module, twin: nn.Module) -> None:
    for (name, mine), theirs in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=RTOL, atol=ATOL, msg=name)


def bits_equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch(name: str) -> None:
    assert_same_training(make_net(), batches_of(4), OPTIMIZERS[name], policy="vdnn-all")


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_train_to_the_bits_of_keep(policy: str) -> None:
    """At its floor, in a random order, with dropout; in bfloat16 too."""
    for dtype in ("fp32", "bf16"):
        nets = [nn.Sequential(*make_net()[:-1], nn.Dropout(), make_net()[-1]) for _ in range(2)]
        kept = trainer_of(nets[0], policy="keep", dtype=dtype)
        roomy = trainer_of(nets[1], policy=policy, dtype=dtype)
        floor, _ = floor_of(roomy.graph, roomy.costs, policy)
        tight = trainer_of(nets[1], policy=policy, dtype=dtype, budget="min", order_seed=11)
        assert tight.schedule.peak_nbytes <= tight.schedule.budget_nbytes == floor
        for x, y in batches_of(3):
            assert torch.equal(kept.step(x, y), tight.step(x, y))
        assert bits_equal(*nets)


@pytest.mark.parametrize("spec", [SGD(lr=0.1, momentum=0.9), AdamW(lr=0.01)])
def test_learning_rates_follow_torchs_schedulers(spec: SGD | AdamW) -> None:
    net = make_net()
    twin = copy.deepcopy(net)
    optimizer = torch_optimizer(spec, twin)
    trainer = trainer_of(net, optimizer=spec)
    schedules = [
        torch.optim.lr_scheduler.SequentialLR(
            each,
            [
                torch.optim.lr_scheduler.LinearLR(each, 0.1, total_iters=2),
                torch.optim.lr_scheduler.CosineAnnealingLR(each, 4),
            ],
            milestones=[2],
        )
        for each in (optimizer, trainer.optimizer)
    ]
    for x, y in batches_of(5):
        torch_step(twin, optimizer, x, y)
        trainer.step(x, y)
        for schedule in schedules:
            schedule.step()
    assert trainer.optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] < spec.lr
    assert_same_parameters(net, twin)


@pytest.mark.parametrize("spec", [MOMENTUM, AdamW(lr=0.01)])
@pytest.mark.parametrize("parts", [2, 3, 6])
def test_accumulated_parts_make_one_update(parts: int, spec: SGD | AdamW) -> None:
    net = make_net()
    twin = copy.deepcopy(net)
    optimizer = torch_optimizer(spec, twin)
    trainer = trainer_of(net, optimizer=spec)
    for number, (x, y) in enumerate(batches_of(4)):
        expected = torch_step(twin, optimizer, x, y)
        found = trainer.step(x, y, accumulate=parts if number else 1)
        torch.testing.assert_close(found, expected, rtol=RTOL, atol=ATOL)
    assert_same_parameters(net, twin)


def test_accumulation_counts_its_sums_in_the_budget() -> None:
    net = make_net()
    trained = 4 * sum(param.numel() for param in net.parameters())
    trainer = trainer_of(net)
    before = trainer.schedule.graph.fixed_nbytes
    x, y = batches_of(1)[0]
    trainer.step(x, y, accumulate=2)
    assert trainer.schedule.graph.fixed_nbytes == before + trained


def test_batches_of_other_sizes_are_planned_and_kept() -> None:
    batches = [batches_of(1, size, seed=size)[0] for size in (6, 4, 1, 6, 9, 4)]
    assert_same_training(make_net(), batches, policy="vdnn-all")


@pytest.mark.parametrize("spec", [MOMENTUM, AdamW(lr=0.01)])
def test_saved_state_resumes_to_the_bit(spec: SGD | AdamW) -> None:
    def made() -> tuple[nn.Module, Trainer]:
        net = nn.Sequential(*make_net()[:-1], nn.Dropout(), make_net()[-1])
        return net, trainer_of(net, seed=4, optimizer=spec)

    (whole, one), (first, two), (second, three) = made(), made(), made()
    batches = batches_of(6)
    losses = [one.step(x, y) for x, y in batches]
    for x, y in batches[:3]:
        two.step(x, y)
    saved = io.BytesIO()
    torch.save(two.state_dict(), saved)
    saved.seek(0)
    three.step(*batches[5])
    three.load_state_dict(torch.load(saved))
    resumed = [three.step(x, y) for x, y in batches[3:]]
    assert torch.equal(torch.stack(resumed), torch.stack(losses[3:]))
    assert bits_equal(whole, second)
    assert not bits_equal(whole, first)


def test_adamw_state_is_torchs() -> None:
    """What is saved continues under torch.optim.AdamW as if it had run from the start."""
    net = make_net()
    twin = copy.deepcopy(net)
    spec, batches = AdamW(lr=0.01), batches_of(4)
    optimizer, trainer = torch_optimizer(spec, twin), trainer_of(net, optimizer=spec)
    for x, y in batches[:2]:
        torch_step(twin, optimizer, x, y)
        trainer.step(x, y)
    optimizer.load_state_dict(copy.deepcopy(trainer.state_dict()["optimizer"]))
    twin.load_state_dict(net.state_dict())
    for x, y in batches[2:]:
        torch_step(twin, optimizer, x, y)
        trainer.step(x, y)
    assert_same_parameters(net, twin)


@pytest.mark.parametrize("policy", ["keep", "vdnn-all"])
def test_channels_last_parameters_stay_so(policy: str) -> None:
    net = make_net().to(memory_format=torch.channels_last)
    batches = [(x.to(memory_format=torch.channels_last), y) for x, y in batches_of(3)]
    assert_same_training(net, batches, policy=policy)
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_inputs_of_any_strides_and_type_are_taken() -> None:
    nets = [make_net() for _ in range(2)]
    plain, strided = (trainer_of(net) for net in nets)
    for x, y in batches_of(2):
        wide = torch.empty(BATCH, 3, 10, 20, dtype=torch.float64)[..., ::2].copy_(x)
        assert torch.equal(plain.step(x, y), strided.step(wide, y))
    assert bits_equal(*nets)


class Tied(nn.Module):
    """Two linear layers that share a weight, and one convolution that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.first = nn.Linear(400, 400)
        self.second = nn.Linear(400, 400, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(400, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.twice(torch.relu(self.twice(self.stem(x)))))
        return self.head(torch.relu(self.second(torch.relu(self.first(x.flatten(1))))))


@pytest.mark.parametrize("policy", ["keep", "vdnn-all"])
def test_tied_weights_get_both_gradients(policy: str) -> None:
    assert_same_training(Tied(), batches_of(3), policy=policy)


@pytest.mark.parametrize("frozen", [("0",), ("0", "4"), ("4", "10"), ("0", "4", "8")])
def test_frozen_parameters_stay(frozen: tuple[str, ...]) -> None:
    net = make_net()
    chosen = [net.get_submodule(name).requires_grad_(False) for name in frozen]
    before = [module.weight.clone() for module in chosen]
    assert_same_training(net, batches_of(3), policy="vdnn-all")
    after = [module.weight for module in chosen]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_parameters_keep_their_addresses() -> None:
    net = make_net()
    addresses = [param.data_ptr() for param in net.parameters()]
    trainer = trainer_of(net)
    for x, y in batches_of(2):
        trainer.step(x, y)
    assert [param.data_ptr() for param in net.parameters()] == addresses


def test_moved_parameters_are_found_again() -> None:
    net, twin = make_net(), make_net()
    trainer, other = trainer_of(net), trainer_of(twin)
    for number, (x, y) in enumerate(batches_of(3)):
        if number == 1:
            for param in net.parameters():
                param.data = param.data.clone()
        assert torch.equal(trainer.step(x, y), other.step(x, y))
    assert bits_equal(net, twin)


class Breaking:
    """A kernel that raises `error` once, when armed, at a given call."""

    def __init__(self, kernel: Callable[..., None], error: type[BaseException]) -> None:
        self.kernel, self.error = kernel, error
        self.calls_left = -1

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise self.error("stop here")
        self.kernel(*args, **kwargs)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_fails_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], accumulate: int
) -> None:
    """The last ReLU's gradient is behind the updates of the last layer: those are undone."""
    breaking = Breaking(activation.relu_grad_reference, error)
    monkeypatch.setattr(activation, "relu_grad_reference", breaking)
    net = make_net()
    trainer = trainer_of(net, policy="vdnn-all")
    (x, y), *_ = batches_of(1)
    trainer.step(x, y, accumulate=accumulate)
    before = copy.deepcopy(trainer.state_dict())
    breaking.calls_left = 8
    with pytest.raises(error, match="stop here"):
        trainer.step(x, y, accumulate=accumulate)
    after = trainer.state_dict()
    assert after["steps"] == before["steps"] == 1
    for name, value in before["model"].items():
        assert torch.equal(value, after["model"][name]), name
    for number, state in before["optimizer"]["state"].items():
        momentum = after["optimizer"]["state"][number]["momentum_buffer"]
        assert torch.equal(state["momentum_buffer"], momentum)
    with pytest.raises(EngineError, match=rf"failed step \({error.__name__}: stop here\)"):
        trainer.step(x, y, accumulate=accumulate)


def test_a_budget_below_the_floor_names_the_floor() -> None:
    with pytest.raises(BudgetError, match="below the floor") as raised:
        trainer_of(make_net(), budget="16KiB")
    floor = raised.value.floor_nbytes
    assert trainer_of(make_net(), budget=floor).schedule.peak_nbytes <= floor
    assert f"{floor:,} bytes" in str(raised.value)


def test_a_host_budget_bounds_what_moves() -> None:
    moving = trainer_of(make_net(), policy="vdnn-all")
    slab = moving.schedule.slab_nbytes
    assert slab > 0
    fits = trainer_of(make_net(), policy="vdnn-all", host_budget=slab)
    assert fits.schedule.slab_nbytes == slab
    with pytest.raises(HostMemoryError, match=r"above the host budget .*raise host_budget"):
        trainer_of(make_net(), policy="vdnn-all", host_budget=slab - 1)


def test_predicted_and_planned_agree() -> None:
    trainer = trainer_of(make_net(), policy="vdnn-all")
    assert len(trainer.predicted.spans) == len(trainer.schedule.steps)
    assert trainer.peak_nbytes() == trainer.schedule.peak_nbytes
    assert trainer.measure(*batches_of(1)[0], steps=2) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "vdnn"}, "policy 'vdnn' is not known; choose one of keep, vdnn-all"),
        ({"dtype": "fp16"}, "dtype 'fp16' is not known; choose one of fp32, tf32, bf16"),
        ({"kernels": "cuda"}, "kernels 'cuda' are not known; choose triton or torch"),
        ({"budget": "lots"}, "'lots' is not a number of bytes"),
        ({"budget": 0}, "0 is not a positive number of bytes"),
        ({"chunk_size": "-4KiB"}, "'-4KiB' is not a number of bytes"),
        ({"sections": 0}, "sections is 0; it must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trainer_of(make_net(), **options)


def test_a_trainer_keeps_float32_weights() -> None:
    with pytest.raises(InputError, match=r"parameter \S+ is bfloat16, not float32; call .float"):
        trainer_of(make_net().bfloat16())


@pytest.mark.parametrize(
    ("x", "y", "accumulate", "message"),
    [
        (torch.zeros(6, *SHAPE), torch.zeros(6), 1, r"y is torch.float32 \[6\]; it must be int64"),
        (torch.zeros(6, *SHAPE), torch.zeros(5, dtype=torch.int64), 1, r"of shape \[6\]"),
        (torch.zeros(6, 3, 9, 9), torch.zeros(6, dtype=torch.int64), 1, "only the batch may vary"),
        (torch.zeros(6, *SHAPE), torch.zeros(6, dtype=torch.int64), 4, "does not divide the batch"),
        (torch.zeros(6, *SHAPE), torch.zeros(6, dtype=torch.int64), 0, "accumulate=0"),
        (torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.int64), 1, "no samples"),
    ],
)
def test_batches_that_do_not_fit_are_named(
    x: Tensor, y: Tensor, accumulate: int, message: str
) -> None:
    trainer = trainer_of(make_net())
    with pytest.raises(InputError, match=message):
        trainer.step(x, y, accumulate=accumulate)
    assert trainer.step(*batches_of(1)[0]).isfinite()


def test_networks_that_cannot_be_trained_are_named() -> None:
    x = torch.empty(BATCH, *SHAPE)
    with pytest.raises(InputError, match="nothing to train"):
        Trainer(make_net().requires_grad_(False), x)
    with pytest.raises(InputError, match=r"call .float\(\)"):
        Trainer(make_net().double(), x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "SGD lr is -1.0; it must be at least 0"),
        ({"momentum": -0.1}, "SGD momentum is -0.1"),
        ({"nesterov": True}, "nesterov needs a momentum"),
    ],
)
def test_optimizers_that_torch_refuses_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SGD(**settings)


def test_a_closed_trainer_says_so() -> None:
    trainer = trainer_of(make_net())
    trainer.close()
    with pytest.raises(EngineError, match="closed"):
        trainer.step(*batches_of(1)[0])


def test_layers_of_tvdnn_train_like_torchs() -> None:
    torch.manual_seed(0)
    net = tvdnn.nn.Sequential(
        tvdnn.nn.Conv2d(3, 8, 3, padding=1),
        tvdnn.nn.ReLU(),
        tvdnn.nn.MaxPool2d(2),
        tvdnn.nn.Flatten(),
        tvdnn.nn.LazyLinear(CLASSES),
    )
    net(torch.zeros(1, *SHAPE))
    assert_same_training(net, batches_of(3), policy="vdnn-all")


def test_lazy_layers_get_their_parameters() -> None:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES))
    losses = [trainer_of(net).step(*batch).item() for batch in batches_of(1)]
    assert net[3].weight.shape == (CLASSES, 4 * 8 * 8)
    assert all(torch.tensor(losses).isfinite())
