"""Opaque ops: submodules that tvdnn has no ops for run by torch inside the schedule."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tvdnn
from tvdnn.engine.virtualized_module import Virtualized
from tvdnn.errors import BudgetError, UnsupportedOpError
from tvdnn.ops import eager_fallback
from tvdnn.trace.trace import trace


class Odd(nn.Module):
    """Parameters of its own, calls that tvdnn has not, one of them in place on what it takes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))
        self.shift = nn.Parameter(torch.randn(channels), requires_grad=False)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x.exp_().log1p()).cumsum(1)
        return y.sin() * self.scale.view(1, -1, 1, 1) + self.shift.view(1, -1, 1, 1)


class Turned(nn.Module):
    """Takes maps with their channels last, and makes three dimensions for another odd layer."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.Sequential(Sums(2), nn.Softshrink())

    def forward(self, x: Tensor) -> Tensor:
        return self.sums(x.permute(0, 2, 3, 1))


class Sums(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(self.dim).flatten(1, 2)


class VisionTransformer(nn.Module):
    """Patches, class token, positions, and a block (Dosovitskiy 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 5, 8))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.rows = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.positions
        each = self.norms[0](tokens)
        tokens = tokens + self.attention(each, each, each, need_weights=False)[0]
        tokens = tokens + self.rows(self.norms[1](tokens))
        logits: Tensor = self.head(self.norms[2](tokens)[:, 0])
        return logits


class Two(nn.Module):
    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return x.cumsum(1) * other


class Decoder(nn.Module):
    """A module of two maps, one of them not trained, and attention of one map to another."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 2, 2)
        self.two, self.gate = Two(), Two()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.two(x, other=x.tanh())
        maps = self.inward(self.gate(maps, x)), self.outward(maps)
        queries, memory = (each.flatten(2).transpose(1, 2) for each in maps)
        found, _ = self.attention(queries, memory, value=memory.sin(), need_weights=False)
        logits: Tensor = self.head((queries + found).mean(1))
        return logits


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Softshrink(),
        nn.Conv2d(8, 8, 3, padding=1),
        Odd(8),
        nn.ReLU(),
        Turned(),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 10),
        nn.Softmin(1),
    )


def trained(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs of three steps of SGD, and the parameters after them."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    outputs = []
    for _ in range(3):
        optimizer.zero_grad()
        y = net(x)
        y.square().mean().backward()
        optimizer.step()
        outputs.append(y.detach())
    return [*outputs, *(param.detach() for param in net.parameters())]


def virtual(x: Tensor, policy: str, **options: Any) -> Virtualized:
    net = network().to(x.device)
    return tvdnn.virtualize(net, x, policy=policy, chunk_size="2KiB", opaque=True, **options)


def test_a_network_with_odd_layers_trains_as_with_torch() -> None:
    x = torch.randn(8, 3, 8, 8)
    exact = trained(network(), x)
    kept = trained(virtual(x, "keep", order_seed=1), x)
    moved = trained(virtual(x, "vdnn-all:m", order_seed=2), x)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(kept, moved, strict=True))
    for mine, theirs in zip(kept, exact, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_modules_of_several_maps_train_as_with_torch() -> None:
    net, x = Decoder(), torch.randn(6, 3, 8, 8)
    exact = trained(copy.deepcopy(net).double(), x.double())
    kept: list[Tensor] = []
    for options in ({"policy": "keep"}, {"policy": "vdnn-all:m"}, {"budget": "min"}):
        mine = copy.deepcopy(net)
        virtual = tvdnn.virtualize(mine, x, opaque=True, chunk_size="2KiB", **options)
        found = trained(virtual, x)
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)
        kept = kept or found
        assert all(torch.equal(one, other) for one, other in zip(found, kept, strict=True))
        virtual.close()
    ops = [op for op in trace(net, (x,), opaque=True).ops if op.kind == "opaque"]
    assert [len(op.inputs) for op in ops] == [2, 2, 3]


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
def test_a_vision_transformer_trains_with_its_attention_by_torch(policy: str) -> None:
    torch.manual_seed(1)
    net, x = VisionTransformer(), torch.randn(6, 3, 8, 8)
    with pytest.raises(UnsupportedOpError, match="attention: MultiheadAttention"):
        trace(net, (x,))
    exact = trained(copy.deepcopy(net).double(), x.double())
    made = trained(tvdnn.virtualize(net, x, policy=policy, dtype="fp32", opaque=True), x)
    for mine, theirs in zip(made, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture
def tf32_allowed() -> Iterator[Any]:
    """Torch's switch for convolutions, turned to TF32 meanwhile."""
    switch: Any = torch.backends.cudnn.conv
    before = switch.fp32_precision
    switch.fp32_precision = "tf32"
    yield switch
    switch.fp32_precision = before


@pytest.mark.parametrize(
    ("dtype", "expected"), [("fp32", {"ieee"}), ("tf32", {"tf32"}), ("bf16", {"tf32"})]
)
def test_torchs_products_are_as_exact_as_the_engines(
    dtype: str, expected: set[str], tf32_allowed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward; and torch's own switch is then as it was."""
    x, seen = torch.randn(8, 3, 8, 8), list[str]()
    net = virtual(x, "keep", dtype=dtype)
    call = eager_fallback._call

    def noted(*given: Any) -> Tensor:
        seen.append(tf32_allowed.fp32_precision)
        return call(*given)

    monkeypatch.setattr(eager_fallback, "_call", noted)
    net(x).float().sum().backward()
    assert len(seen) > 2
    assert {*seen} == expected
    assert tf32_allowed.fp32_precision == "tf32"


@pytest.mark.gpu
def test_odd_layers_train_within_the_graphs_of_a_gpu(device: torch.device) -> None:
    x = torch.randn(8, 3, 8, 8, device=device)
    exact = trained(network().double().to(device), x.double())
    kept, moved = (
        trained(virtual(x, policy, dtype="fp32"), x) for policy in ("keep", "vdnn-all:m")
    )
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(kept, moved, strict=True))
    for mine, theirs in zip(kept, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)


def test_parameters_in_bfloat16_run_in_float32() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.ReLU(), Odd(3)).bfloat16(), torch.randn(4, 3, 8, 8)
    y = tvdnn.virtualize(copy.deepcopy(net), x, dtype="fp32", opaque=True)(x)
    torch.testing.assert_close(y.float(), net.float()(x), rtol=1e-2, atol=1e-2)


def test_an_eval_network_and_frozen_inputs() -> None:
    x = torch.randn(4, 3, 8, 8)
    model, exact = virtual(x, "keep"), network()
    with torch.no_grad():
        torch.testing.assert_close(model(x), exact(x), rtol=1e-5, atol=1e-6)
    for net in (model, exact):  # then nothing upstream of the first odd layer is trained
        net.get_parameter("0.weight").requires_grad_(False)
        net.get_parameter("0.bias").requires_grad_(False)
        net(x).sum().backward()
    mine, theirs = (net.get_parameter("3.scale").grad for net in (model, exact))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_plan_and_the_budget_count_it() -> None:
    x = torch.randn(8, 3, 8, 8)
    model = virtual(x, "keep")
    assert model.plan.outside == ("1", "3", "5.sums.0", "5.sums.1", "8")
    assert str(model.plan).endswith("  8: run by torch, outside the memory guarantee")
    map_nbytes = 8 * 8 * 8 * 8 * 4  # of Odd's backward at least its copy and four results are there
    counted = model.schedule.graph.fixed["opaque ops"]
    assert 5 * map_nbytes <= counted <= 16 * map_nbytes
    with pytest.raises(BudgetError):
        virtual(x, "keep", budget=model.schedule.peak_nbytes - counted)


class Attention(nn.Module):
    """Pixels that attend to one another; the layer takes one map thrice, and makes one and None."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        made, _ = self.attention(tokens, tokens, tokens, need_weights=False, attn_mask=mask)
        return x + scale * made.transpose(1, 2).unflatten(2, x.shape[2:])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.block = nn.Conv2d(3, 8, 1), Attention()

    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = self.block(scale=0.5, x=self.conv(x), mask=None)
        return attended.relu()


class Beside(nn.Module):
    """Calls a module with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.two, self.own = Two(), nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.two(x, self.own)


class Paired(nn.Module):
    """A module of a map and a parameter, within one of a map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.block = nn.Conv2d(3, 4, 1), Beside()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.conv(x)).relu()


@pytest.mark.parametrize(("make", "outside"), [(Attending, "block.attention"), (Paired, "block")])
def test_the_nearest_module_around_that_can_runs_by_torch(
    make: Callable[[], nn.Module], outside: str
) -> None:
    torch.manual_seed(0)
    net, x = make(), torch.randn(4, 3, 4, 6)
    for policy in ("keep", "vdnn-all:m"):
        model = tvdnn.virtualize(copy.deepcopy(net), x, policy=policy, opaque=True)
        assert model.plan.outside == (outside,)
        mine, exact = trained(model, x), trained(copy.deepcopy(net), x)
        for found, wanted in zip(mine, exact, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_copies_keep_it() -> None:
    x = torch.randn(2, 3, 8, 8)
    model = copy.deepcopy(virtual(x, "keep"))
    torch.testing.assert_close(model(x), network()(x), rtol=1e-5, atol=1e-6)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.poisson(x.abs())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.cumsum(1)


class Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Sequential(nn.RReLU()), r"0: RReLU that draws random numbers \(aten.rrelu"),
        (nn.Sequential(Noisy()), r"0: Noisy that draws random numbers \(aten.poisson"),
        (nn.Sequential(Counting()), "0: Counting that changes its buffer calls"),
        (Beside(), "two: Two of a tensor that is no map .one that runs by torch takes maps"),
        (nn.Sequential(nn.Embedding(3, 4)), "0: Embedding that makes no tensor whose shape"),
        (Own(), "Own: cumsum"),
    ],
)
def test_what_cannot_be_opaque_says_so(layer: nn.Module, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(layer, (torch.empty(2, 1, 3, 4),), opaque=True)


def test_it_is_off_by_default() -> None:
    with pytest.raises(UnsupportedOpError, match="Softshrink"):
        tvdnn.virtualize(network(), torch.empty(2, 3, 8, 8))
