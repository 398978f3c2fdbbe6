"""Weights that ops compute of parameters and buffers: gradients as torch's, the bits of keep."""

import gc
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, parametrizations, parametrize

from tests.support import twins
from tests.support.beside_torch import assert_close, assert_trains_as_torch
from tests.support.running import Batch, random_batches
from tvdnn import Trainer, virtualize
from tvdnn.engine.build import training_graph
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.ops.torch_peak import peak_nbytes
from tvdnn.optim import SGD, AdamW
from tvdnn.trace.state.meta_answers import answer
from tvdnn.trace.trace import trace

pytestmark = pytest.mark.usefixtures("few_trials")

BATCH, SHAPE, CLASSES = 4, (4, 6, 8), 4
CHUNK_SIZE = 900  # bytes
POLICIES = ("keep", "vdnn-all:m", "auto")


class StdConv2d(nn.Conv2d):
    """Filters normalized as the channels of a batch are, with a gain where it is asked for."""

    def __init__(self, *args: Any, gain: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5) if gain else None
        self.scale = 1.7

    def forward(self, x: Tensor) -> Tensor:
        gain = None if self.gain is None else (self.gain * self.scale).view(-1)
        flat = self.weight.reshape(1, self.out_channels, -1)
        w = functional.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0)
        settings = (self.stride, self.padding, self.dilation, self.groups)
        return functional.conv2d(x, w.reshape_as(self.weight), self.bias, *settings)


class WrittenOut(nn.Conv2d):
    """The usual forms by hand: of the mean and deviation, or of both at once."""

    def __init__(self, *args: Any, at_once: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at_once = at_once

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        if self.at_once:
            var, mean = torch.var_mean(w, dim=[1, 2, 3], keepdim=True, unbiased=False)
            w = (w - mean) / torch.sqrt(var + 1e-5)
        else:
            w = w - w.mean((1, 2, 3), keepdim=True)
            w = w / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return functional.conv2d(x, w, self.bias, self.stride, self.padding, groups=self.groups)


class Behind(nn.Module):
    """Layers between a convolution and a linear layer that train as they are."""

    def __init__(self, *layers: nn.Module, channels: int = 4) -> None:
        super().__init__()
        self.first, self.layers = nn.Conv2d(4, 4, 1), nn.Sequential(*layers)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(functional.relu(self.first(x)))
        return self.head(x.flatten(2).mean(2))


def standardized() -> nn.Module:
    return Behind(
        StdConv2d(4, 6, 3, padding=1),
        StdConv2d(6, 6, 3, padding=1, groups=6, bias=False),
        StdConv2d(6, 4, 3, stride=2, groups=2, gain=True),
    )


def written_out() -> nn.Module:
    return Behind(
        WrittenOut(4, 4, 3, padding=1, at_once=False),
        WrittenOut(4, 4, 3, padding=1, groups=4, at_once=True),
    )


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return (weight + weight.flip(3)) / 2


class Scaled(nn.Module):
    """A parametrization with a parameter of its own."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(outputs, 1, 1, 1) + 0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale.exp()


def parametrized() -> nn.Module:
    conv = parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))
    twice = nn.Conv2d(4, 6, 3, padding=1, groups=2)
    parametrize.register_parametrization(twice, "weight", Symmetric())
    parametrize.register_parametrization(twice, "weight", Scaled(6))
    turned = parametrizations.weight_norm(nn.ConvTranspose2d(6, 4, 3), dim=1)
    net = Behind(conv, nn.ReLU(), twice, turned)
    net.head = parametrizations.orthogonal(net.head)
    return net


def normed_before_each_call() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conv = nn.utils.weight_norm(nn.Conv2d(4, 4, 3, groups=4))
    conv.weight = conv.weight.detach()  # deepcopy takes no other
    return Behind(conv)


class Masked(nn.Module):
    """Weights and biases times masks, numbers and parameters; filters expanded from one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 6, 3, padding=1), nn.Linear(6, CLASSES)
        self.register_buffer("mask", (torch.rand(6, 4, 3, 3) > 0.4).float())
        self.register_buffer("kept", torch.tensor([True, False, True, True, False, True]))
        self.register_buffer("filter", torch.rand(1, 1, 3, 3))
        self.one = nn.Parameter(torch.rand(1, 1, 2, 2))
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.where(self.kept, self.conv.bias, torch.zeros_like(self.conv.bias))
        x = functional.conv2d(x, self.conv.weight * self.mask, bias, padding=1)
        x = functional.conv2d(x, self.filter.expand(6, 1, 3, 3), stride=2, padding=1, groups=6)
        x = functional.conv2d(x, self.one.expand(6, -1, -1, -1), groups=6)
        x = x.mean((2, 3))
        return functional.linear(x, self.head.weight * self.scale, self.head.bias * 2)


class Normalized(nn.Module):
    """Normalizations, slopes and products with maps, whose parameters are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 4, 1), nn.Linear(4, CLASSES)
        self.gamma, self.beta = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4))
        self.rows = nn.Parameter(torch.rand(6, 1))
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        gamma, state = 1 + self.gamma, (self.running_mean, self.running_var)
        x = functional.batch_norm(self.conv(x), *state, gamma, -self.beta, training=True)
        x = functional.group_norm(x, 2, gamma * 2, self.beta.exp())
        x = functional.prelu(x, self.beta.sigmoid())
        x = x * self.gamma.exp().view(1, -1, 1, 1) + self.rows.softmax(0)
        x = functional.layer_norm(x.mean((2, 3)), (4,), gamma, None)
        return functional.linear(x, self.head.weight.t(), self.head.bias)


class Sign(torch.autograd.Function):
    """One bit of each weight, whose gradient is the weight's."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.sign() * weight.abs().mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 0.5


class Odd(nn.Module):
    """Filters made in place, by parts, without gradients, by a function of its own, of a code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lines = nn.Conv2d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1)
        self.one = nn.Parameter(torch.rand(1, 1, 1, 1))
        self.code, self.made = nn.Parameter(torch.rand(1, 3)), nn.Linear(3, 4 * 4 * 2)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = functional.conv2d(x, self.one.expand(4, -1, -1, -1), groups=4)
        w = self.conv.weight.clone()
        w[:, 1] = 0
        w[0].mul_(2)
        x = functional.conv2d(x, w, self.conv.bias, padding=1)
        x = functional.conv2d(x, Sign.apply(self.conv.weight), padding=1)
        with torch.no_grad():
            scale = self.conv.weight.abs().amax((1, 2, 3), keepdim=True)
        first, second = (self.conv.weight / scale).split(2, 0)
        x = functional.conv2d(x, torch.cat([second, first.detach()]), padding=1)
        x = functional.conv2d(x, self.made(self.code).view(4, 4, 1, 2))
        x = functional.conv1d(x.flatten(2), self.lines.weight.flip(2), self.lines.bias, padding=1)
        return self.head(x.mean(2))


class Shared(nn.Module):
    """A weight that is read as it is, and computed in two ways by layers that share a result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, CLASSES)
        self.std = StdConv2d(4, 4, 3, padding=1, gain=True)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.conv.weight.transpose(2, 3).flip(0) - self.conv.weight.mean()
        x = self.conv(x) + functional.conv2d(x, turned, padding=1)
        x = functional.relu(functional.conv2d(x, turned, self.conv.bias / 2, padding=1))
        x = self.std(self.std(x))
        x = functional.conv2d(x, self.std.weight, padding=1)
        return self.head(x.mean((2, 3)))


def frozen() -> nn.Module:
    """Filters that do not train, among them some whose gain does."""
    net = Behind(StdConv2d(4, 4, 3), StdConv2d(4, 4, 3, gain=True))
    net.layers[0].requires_grad_(False)
    net.layers[1].weight.requires_grad_(False)
    return net


NETWORKS: list[Callable[[], nn.Module]] = [
    *(standardized, written_out, parametrized, normed_before_each_call),
    *(Masked, Normalized, Odd, Shared, frozen),
]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make()


def batch_of(seed: int = 2) -> Batch:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=seed)
    return batch


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
    computed = model._core_now().computed.of(model.schedule.graph.network)
    assert len(computed) == 2
    assert all((weight != weight.bfloat16().float()).any() for weight in computed.values())


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


class Rewritten(nn.Module):
    """A filter that is written over after a layer has read it, and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight * 2
        x = functional.conv2d(x, weight, padding=1)
        weight[:, 0] = weight.mean()
        return functional.conv2d(x, weight, padding=1)


def test_a_layer_reads_what_a_weight_is_then() -> None:
    net, x = seeded(Rewritten), batch_of()[0]
    with torch.no_grad():
        torch.testing.assert_close(virtualize(net, x, policy="keep")(x), net(x))


class Refused(nn.Module):
    """A convolution whose weight `compute` makes."""

    def __init__(self, compute: Callable[["Refused"], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.table = torch.rand(4, 4, 1, 1)
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return functional.conv2d(x, self.compute(self))


def normalized(net: Refused) -> Tensor:
    flat = net.conv.weight.view(1, 4, 4)
    state = net.mean, torch.ones_like(net.mean)
    return functional.batch_norm(flat, *state, training=True).view(4, 4, 1, 1)


def normalized_besides(net: Refused) -> Tensor:
    normalized(net)
    return net.conv.weight


def hooked(net: Refused) -> Tensor:
    weight = net.conv.weight * 2
    weight.register_hook(lambda gradient: gradient * 2)
    return weight


def doubled_in_place(net: Refused) -> Tensor:
    with torch.no_grad():
        net.conv.weight.mul_(2)
    return net.conv.weight + 1


def set_anew(net: Refused) -> Tensor:
    net.conv.weight.data = net.conv.weight.data * 2
    return net.conv.weight


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda net: functional.dropout(net.conv.weight), "draws random numbers"),
        (lambda net: net.conv.weight + torch.rand_like(net.conv.weight), "draws random numbers"),
        (normalized, "batch_norm of a parameter changes statistics"),
        (normalized_besides, "batch_norm of a parameter changes statistics"),
        (lambda net: net.conv.weight * net.norm.running_var, "norm changes norm.running_var"),
        (doubled_in_place, "by code that changes what it reads"),
        (set_anew, "data changes conv.weight of the module"),
        (lambda net: net.conv.weight * net.table.to("meta"), "neither a parameter nor a buffer"),
        (hooked, "register_hook of a parameter"),
        (lambda net: torch.ones(4, 4, 1, 1), "is not a parameter or buffer"),
    ],
)
def test_what_no_step_could_compute_again_is_refused(
    compute: Callable[[Refused], Tensor], message: str
) -> None:
    place = rf".* at \S*{re.escape(__file__.rpartition('/')[2])}:\d+"
    with pytest.raises(UnsupportedOpError, match=re.escape(message) + place):
        trace(Refused(compute), [torch.empty(2, *SHAPE)])


def test_spectral_norm_that_is_estimated_is_refused() -> None:
    net = parametrizations.spectral_norm(nn.Conv2d(4, 4, 1))
    with pytest.raises(UnsupportedOpError, match="by code that changes what it reads"):
        trace(net, [torch.empty(2, *SHAPE)])


class OfAUser(nn.Conv2d):
    """A layer of a user's own class, as torch's."""


class OfAUserByHand(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight, self.bias)


@pytest.mark.parametrize("kind", [OfAUser, OfAUserByHand])
def test_the_old_weight_norm_of_a_users_own_layer_trains(kind: type[nn.Conv2d]) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        conv = nn.utils.weight_norm(kind(4, 6, 3))
    conv.weight = conv.weight.detach()  # deepcopy takes no other
    net = nn.Sequential(conv, nn.ReLU(), nn.Conv2d(6, 2, 1))
    assert_trains_as_torch(net, torch.randn(3, 4, 6, 5))


MASK = [[1.0, 0.0, 1.0, 0.5], [0.0, 1.0, 0.0, 1.0]]
Factor = Callable[[Tensor, Tensor], Tensor]
CONSTANTS: dict[str, Factor] = {
    "tensor": lambda x, w: torch.tensor(MASK),
    "tensor on the device": lambda x, w: torch.tensor(MASK, device=x.device, dtype=x.dtype),
    "tensor like the weight": lambda x, w: w.new_tensor(MASK),
    "ones": lambda x, w: torch.ones(2, 4).tril(),
    "full": lambda x, w: torch.full((2, 4), 0.5, device=w.device),
    "a range": lambda x, w: torch.arange(8.0, device=x.device).view(2, 4),
    "written": lambda x, w: torch.zeros(2, 4).index_fill_(1, torch.tensor([1, 2]), 0.5),
    "ones of a map's type": lambda x, w: x.new_ones(2, 4) * 0.5,
    "zeros of a map's type": lambda x, w: x.new_zeros((2, 4), dtype=None) + w[:, :, 0, 0],
    "numbers of a map's type": lambda x, w: x.new_full((2, 4), 0.25),
}


class Fixed(nn.Conv2d):
    """A weight times a constant that forward makes."""

    def __init__(self, factor: Factor) -> None:
        super().__init__(4, 2, 3)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        mask = self.factor(x, self.weight)[:, :, None, None]
        return functional.conv2d(x, self.weight * mask, self.bias)


@pytest.mark.parametrize("factor", CONSTANTS.values(), ids=CONSTANTS.keys())
def test_constants_that_forward_makes_may_be_factors(factor: Factor) -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Fixed(factor), torch.randn(3, 4, 6, 5))


class Reshaped(nn.Linear):
    """A weight in sizes and by factors that numpy computes."""

    def __init__(self) -> None:
        super().__init__(4 * 3 * 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.view(np.int64(2), 4, 3, np.prod((1, 3))) * np.float32(0.5)
        return functional.conv2d(x, weight, self.bias)


def test_sizes_of_a_weight_may_be_numbers_of_numpys() -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Reshaped(), torch.randn(3, 4, 6, 5))


OUTSIDE = torch.rand(2, 4)


@pytest.mark.parametrize(
    "factor",
    [
        lambda x, w: OUTSIDE,
        lambda x, w: torch.from_numpy(OUTSIDE.numpy()),
        lambda x, w: torch.FloatTensor(MASK),
    ],
)
def test_constants_from_elsewhere_are_refused_by_line(factor: Factor) -> None:
    here = r"at \S*test_computed_weights.py:\d+"
    with pytest.raises(UnsupportedOpError, match=f"neither a parameter nor a buffer.*{here}"):
        trace(Fixed(factor), (torch.randn(3, 4, 6, 5),))


def test_copies_of_constants_end_with_the_call_that_reads_them() -> None:
    """What a search for cycles must free is there for so long as none runs, and counts."""
    twin, constant = torch.ones(2, device="meta"), torch.full((2,), 0.5)

    def run() -> None:
        for _ in range(9):
            answer(torch.mul, (twin, constant), {}, torch.device("cpu"))

    gc.disable()
    try:
        assert peak_nbytes(run, twin.device) == constant.nbytes + twin.nbytes
    finally:
        gc.enable()
