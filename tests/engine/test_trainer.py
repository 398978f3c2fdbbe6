"""Trainer against torch's own loop, its state, and its refusals."""

import copy
import io
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import tvdnn
from tests.support.trained_networks import (
    ATOL,
    BATCH,
    CLASSES,
    MOMENTUM,
    OPTIMIZERS,
    RTOL,
    SHAPE,
    assert_same_parameters,
    assert_same_training,
    batches_of,
    bits_equal,
    make_net,
    torch_optimizer,
    torch_step,
    trainer_of,
)
from tvdnn.engine import Trainer
from tvdnn.optim import SGD, AdamW
from tvdnn.planner.make import Problem
from tvdnn.planner.policies import POLICIES

pytestmark = pytest.mark.usefixtures("units_of_one", "few_trials")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch(name: str) -> None:
    assert_same_training(make_net(), batches_of(4), OPTIMIZERS[name], policy="vdnn-all")


@pytest.mark.parametrize("policy", [name for name, each in POLICIES.items() if not each.lossy])
def test_policies_train_to_the_bits_of_keep(policy: str) -> None:
    """The budget is the floor, the order random, and there is dropout. Types include bfloat16."""
    for dtype in ("fp32", "bf16"):
        net = dropping_net()
        tight = trainer_of(net, policy=policy, dtype=dtype, budget="min", order_seed=11)
        floor, _ = Problem(tight.graph, tight.costs).floor(policy)
        assert tight.schedule.peak_nbytes <= tight.schedule.budget_nbytes == floor
        losses, kept = trained_by_keep(dtype)
        assert [tight.step(*batch).item() for batch in batches_of(3)] == losses
        assert bits_equal(net, kept)


def dropping_net() -> nn.Sequential:
    return nn.Sequential(*make_net()[:-1], nn.Dropout(), make_net()[-1])


@cache
def trained_by_keep(dtype: str) -> tuple[list[float], nn.Module]:
    """The losses of three steps, and the network after them."""
    net = dropping_net()
    kept = trainer_of(net, policy="keep", dtype=dtype)
    return [kept.step(*batch).item() for batch in batches_of(3)], net


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
    """Saved state continues under torch.optim.AdamW as if it had run from the start."""
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


def test_predicted_and_planned_agree() -> None:
    trainer = trainer_of(make_net(), policy="vdnn-all")
    assert len(trainer.predicted.spans) == len(trainer.schedule.steps)
    assert trainer.peak_nbytes() == trainer.schedule.peak_nbytes
    assert trainer.measure(*batches_of(1)[0], steps=2) > 0


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


class Noisy(nn.Module):
    """Random numbers and nothing else, so that a loss beside zeros is the mean of their squares."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + torch.randn_like(x)


def test_parts_of_a_step_draw_other_numbers() -> None:
    """Eight parts of one sample, drawn alike, would have the loss of one part."""
    losses = []
    for samples, parts in ((1, 1), (8, 8), (8, 8)):
        x = torch.ones(samples, 8)
        trainer = Trainer(Noisy(), x[:1], loss="mse")
        losses.append(trainer.step(x, torch.zeros_like(x), accumulate=parts).item())
        trainer.close()
    one, eight, again = losses
    assert abs(one - eight) > 0.01
    assert eight == again


def test_neighbouring_seeds_draw_other_numbers() -> None:
    """One seed's second step is not the next seed's first."""
    x, losses = torch.ones(4, 8), set()
    for seed in range(3):
        trainer = Trainer(Noisy(), x, loss="mse", optimizer=SGD(lr=0.0), seed=seed)
        losses |= {trainer.step(x, torch.zeros_like(x)).item() for _ in range(3)}
        trainer.close()
    assert len(losses) == 9
