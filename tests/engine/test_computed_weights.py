"""Weights that ops compute of parameters and buffers: gradients as torch's, the bits of keep."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, parametrizations, parametrize

from tests.support import twins
from tests.support.beside_torch import assert_close, assert_trains_as_torch
from tests.support.computed_networks import (
    BATCH,
    CLASSES,
    NETWORKS,
    SHAPE,
    Behind,
    Masked,
    Odd,
    Shared,
    Symmetric,
    batch_of,
    frozen,
    parametrized,
    seeded,
    standardized,
    written_out,
)
from tests.support.running import Batch, random_batches
from tvdnn import Trainer, virtualize
from tvdnn.engine.build import training_graph
from tvdnn.errors import InputError
from tvdnn.optim import SGD, AdamW

pytestmark = pytest.mark.usefixtures("few_trials")
CHUNK_SIZE = 900  # bytes
POLICIES = ("keep", "vdnn-all:m", "auto")


@pytest.mark.parametrize("make", NETWORKS)
def test_steps_are_torchs_under_every_policy(make: Callable[[], nn.Module]) -> None:
    x = batch_of()[0].requires_grad_()
    assert_trains_as_torch(seeded(make), x, policies=POLICIES)


@pytest.mark.parametrize("make", [standardized, parametrized, Masked])
def test_steps_in_eval_mode_are_torchs(make: Callable[[], nn.Module]) -> None:
    assert_trains_as_torch(seeded(make).eval(), batch_of()[0])


def test_spectral_norm_trains_where_it_is_not_estimated() -> None:
    net = Behind(parametrizations.spectral_norm(nn.Conv2d(4, 4, 3))).eval()
    assert_trains_as_torch(net, batch_of()[0])


@pytest.mark.parametrize("make", [standardized, Masked, Shared])
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_other_types_keep_the_bits(make: Callable[[], nn.Module], dtype: str) -> None:
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=1)
    settings = {"chunk_size": CHUNK_SIZE, "dtype": dtype}
    keep, *others = (
        twins.trained(seeded(make), batches, policy=policy, **settings)
        for policy in ("keep", "vdnn-all", "tvdnn-heuristic")
    )
    for run in others:
        assert all(map(torch.equal, keep, run))
    exact = twins.trained(seeded(make), batches, policy="keep", chunk_size=CHUNK_SIZE)
    torch.testing.assert_close(torch.stack(keep[:2]), torch.stack(exact[:2]), rtol=0.05, atol=0.05)


def test_parameters_in_bfloat16_are_computed_in_float32() -> None:
    net, x = seeded(standardized).bfloat16(), batch_of()[0]
    outputs, grads = [], []
    for model in (net, seeded(standardized)):
        if model is not net:
            model.load_state_dict(net.state_dict())
        y = virtualize(model, x, policy="keep", dtype="fp32")(x)
        y.square().sum().backward()
        outputs.append(y.detach())
        grads.append([param.grad.float() for param in model.parameters()])
    assert torch.equal(*outputs)
    for mine, theirs in zip(*grads, strict=True):
        assert torch.equal(mine, theirs.bfloat16().float())


def test_autocast_computes_weights_in_float32() -> None:
    net, x = seeded(written_out), batch_of()[0]
    model = virtualize(net, x, policy="keep")
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    computed = model._steps.core_now().computed.of(model.schedule.graph.network)
    assert len(computed) == 2
    assert all((weight != weight.bfloat16().float()).any() for weight in computed.values())


class Doubled(torch.autograd.Function):
    """A function whose backward takes a gradient that is missing for zeros."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return 2 * grad


class Detached(nn.Module):
    """The weight that `Doubled` computes has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.own = nn.Conv2d(4, 4, 3), nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x + (x * Doubled.apply(self.own)).detach()


def test_a_parameter_without_a_gradient_has_none() -> None:
    net, x = seeded(Detached), batch_of()[0]
    expected = net(x)
    model = virtualize(net, x, policy="keep", dtype="fp32")
    found = model(x)
    torch.testing.assert_close(found, expected)
    assert model.schedule.graph.network.formulas
    found.sum().backward()
    assert net.own.grad is None
    assert net.conv.weight.grad is not None


def trained_by_torch(net: nn.Module, batches: list[Batch], optimizer: Any) -> list[Tensor]:
    """The losses and parameters of a twin in float64."""
    net = net.double()
    update = optimizer(net.parameters())
    losses = []
    for x, y in batches:
        loss = functional.cross_entropy(net(x.double()), y)
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.detach())
    return [*losses, *(param.detach() for param in net.parameters())]


def trained(
    make: Callable[[], nn.Module], batches: list[Batch], accumulate: int = 1, **options: Any
) -> list[Tensor]:
    net = seeded(make)
    trainer = Trainer(net, batches[0][0], chunk_size=CHUNK_SIZE, **options)
    losses = [trainer.step(x, y, accumulate=accumulate).clone() for x, y in batches]
    trainer.close()
    return [*losses, *(param.detach() for param in net.parameters())]


def assert_all_close(mine: list[Tensor], exact: list[Tensor]) -> None:
    for number, pair in enumerate(zip(mine, exact, strict=True)):
        assert_close(*pair, str(number))


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1)


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01, eps=1e-3)


OPTIMIZERS = [
    (SGD(lr=0.05, momentum=0.9, weight_decay=0.1), sgd),
    (AdamW(lr=0.01, eps=1e-3), adamw),
]


@pytest.mark.parametrize("make", NETWORKS)
@pytest.mark.parametrize(("ours", "torchs"), OPTIMIZERS)
def test_a_trainer_trains_them_as_torch(
    make: Callable[[], nn.Module], ours: Any, torchs: Any
) -> None:
    batches = random_batches(3, (BATCH, *SHAPE), CLASSES, seed=1)
    exact = trained_by_torch(seeded(make), batches, torchs)
    keep = trained(make, batches, policy="keep", optimizer=ours)
    assert_all_close(keep, exact)
    other = trained(make, batches, policy="vdnn-all", optimizer=ours)
    assert all(map(torch.equal, keep, other))


@pytest.mark.parametrize("policy", ["auto", "tvdnn-heuristic", "vdnn-dyn"])
def test_the_least_memory_keeps_the_bits(policy: str) -> None:
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=1)
    keep = trained(written_out, batches, policy="keep", optimizer=OPTIMIZERS[0][0])
    least = trained(
        written_out, batches, policy=policy, budget="min", optimizer=OPTIMIZERS[0][0], order_seed=1
    )
    assert all(map(torch.equal, keep, least))


@pytest.mark.parametrize("make", [Shared, frozen, Odd])
def test_sums_of_parts_are_torchs(make: Callable[[], nn.Module]) -> None:
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=1)
    exact = trained_by_torch(seeded(make), batches, sgd)
    parts = trained(make, batches, accumulate=2, policy="keep", optimizer=OPTIMIZERS[0][0])
    assert_all_close(parts, exact)


def test_steps_of_other_sizes_and_of_parts_share_the_sums() -> None:
    batches = [*random_batches(1, (BATCH, *SHAPE), CLASSES, seed=1)]
    batches += [*random_batches(1, (2, *SHAPE), CLASSES, seed=2), *batches]
    exact = trained_by_torch(seeded(Shared), batches, sgd)
    net = seeded(Shared)
    trainer = Trainer(net, batches[0][0], policy="keep", optimizer=OPTIMIZERS[0][0])
    losses = [trainer.step(*each, accumulate=k) for each, k in zip(batches, (1, 2, 1), strict=True)]
    assert_all_close([*losses, *(param.detach() for param in net.parameters())], exact)


def test_a_label_out_of_range_changes_nothing() -> None:
    net, (x, y) = seeded(Shared), batch_of()
    trainer = Trainer(net, x, policy="keep", optimizer=AdamW(lr=0.1))
    before = [param.detach().clone() for param in net.parameters()]
    with pytest.raises(InputError, match="sample 1 has label 9"):
        float(trainer.step(x, torch.tensor([0, 9, 1, 1])))
    assert all(map(torch.equal, before, net.parameters()))
    trainer.step(x, y)
    assert not torch.equal(before[0], next(net.parameters()))


def test_what_torch_computes_is_counted() -> None:
    x = torch.empty(BATCH, *SHAPE, device="meta")
    graph = training_graph(seeded(standardized), x)
    weights = {name: param for name, param in graph.network.params.items() if param.computed_from}
    assert sorted(weights) == [f"layers.{n}.weight computed" for n in range(3)]
    assert weights["layers.2.weight computed"].computed_from == ("layers.2.gain", "layers.2.weight")
    nbytes = 4 * sum(p.numel() for p in seeded(standardized).parameters())
    assert graph.fixed["parameters"] == nbytes + sum(p.nbytes for p in weights.values())
    most = max(param.nbytes for param in weights.values())
    assert 2 * most <= graph.fixed["computed parameters"] <= 10 * most


def test_the_plan_names_them() -> None:
    model = virtualize(seeded(frozen), batch_of()[0], policy="keep")
    assert model.plan.outside == ("layers.0.weight computed", "layers.1.weight computed")
    assert str(model.plan).endswith("computed: run by torch, outside the memory guarantee")


def test_no_computed_weight_no_bytes() -> None:
    graph = training_graph(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), torch.empty(4, *SHAPE))
    assert not {"computed parameters", "parameter gradients"} & graph.fixed.keys()


def test_changes_of_what_computes_are_followed() -> None:
    net, x = seeded(standardized), batch_of()[0]
    model = virtualize(net, x, policy="keep")
    before = model(x)
    changes: list[Callable[[], object]] = [
        lambda: setattr(net.layers[2], "scale", 3.0),
        lambda: net.layers[0].weight.data.add_(torch.rand(6, 4, 3, 3)),
        lambda: setattr(net.layers[0], "weight", nn.Parameter(torch.rand(6, 4, 3, 3))),
        lambda: parametrize.register_parametrization(net.layers[0], "weight", Symmetric()),
        lambda: parametrize.remove_parametrizations(
            net.layers[0], "weight", leave_parametrized=False
        ),
    ]
    for change in changes:
        change()
        after = model(x)
        assert not torch.allclose(before, after)
        torch.testing.assert_close(after, net(x))
        before = after


def test_gradients_are_clipped_by_norm_in_a_loop() -> None:
    x = batch_of()[0]
    norms = []
    for engine in (False, True):
        net = seeded(Shared)
        model = virtualize(net, x, policy="keep") if engine else net
        for _ in range(2):  # gradients add up
            model(x).square().sum().backward()
        norms.append(clip_grad_norm_(net.parameters(), 0.1))
    torch.testing.assert_close(*norms)


def test_a_forward_without_gradients_is_torchs() -> None:
    net, x = seeded(Shared), batch_of()[0]
    model = virtualize(net, x, policy="keep")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(model(x), net(x))
    assert model(x).requires_grad
