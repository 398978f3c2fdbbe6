"""virtualize under torch's autograd: what a user's loop may do, and what says why it may not."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tvdnn
from tests.support.running import Batch, random_batches
from tvdnn.engine import Virtualized, virtualize
from tvdnn.errors import BudgetError, EngineError, HostMemoryError, InputError, UnsupportedOpError

pytestmark = pytest.mark.usefixtures("units_of_one")

RTOL, ATOL = 1e-4, 1e-6  # of gradients, relative to fp32's 1.2e-7 a rounding
BATCH, SHAPE, CLASSES = 6, (3, 8, 8), 4
CHUNK_SIZE = 3000


class Net(nn.Module):
    """Two convolutions, a pooling and two linear layers; `dropout` before the last."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 6, 3, stride=2)
        self.pool = nn.MaxPool2d(2, stride=1)
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(24, 10)
        self.fc2 = nn.Linear(10, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return self.pool(torch.relu(self.conv2(torch.relu(self.conv1(x)))))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.fc1(self.features(x).flatten(1)))
        return self.fc2(self.dropout(hidden))


class Pair(Net):
    """Returns maps from inside the network beside its logits."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.conv2(torch.relu(self.conv1(x)))
        hidden = torch.relu(self.fc1(self.pool(torch.relu(inner)).flatten(1)))
        return inner, self.fc2(hidden)


def batches_of(count: int, size: int = BATCH, seed: int = 1) -> list[Batch]:
    return random_batches(count, (size, *SHAPE), CLASSES, seed)


def virtual(net: nn.Module, **options: Any) -> Virtualized:
    options = {"policy": "vdnn-all", "chunk_size": CHUNK_SIZE, "order_seed": 2} | options
    return virtualize(net, torch.empty(BATCH, *SHAPE), **options)


def twins(**options: Any) -> tuple[Virtualized, Net]:
    """A virtualized network, and its twin that torch runs."""
    net = Net()
    return virtual(net, **options), copy.deepcopy(net)


def loss_of(net: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return functional.cross_entropy(net(x), y)


def assert_close(mine: Tensor, theirs: Tensor, what: str = "") -> None:
    torch.testing.assert_close(mine, theirs, rtol=RTOL, atol=ATOL, msg=what or None)


def assert_same_gradients(net: nn.Module, twin: nn.Module) -> None:
    for (name, mine), theirs in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            assert_close(mine.grad, theirs.grad, name)


@pytest.mark.parametrize("policy", ["keep", "vdnn-all", "vdnn-conv:m", "vdnn-all:p:sync"])
def test_a_users_loop_trains_as_with_torch(policy: str) -> None:
    net, twin = twins(policy=policy)
    nets = (net, twin)
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in nets]
    for batch in batches_of(3):
        losses = []
        for each, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(loss_of(each, batch))
            losses[-1].backward()
            nn.utils.clip_grad_norm_(each.parameters(), 0.5)
            optimizer.step()
        assert_close(*losses)
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)  # Adam divides by roots


def test_policies_give_the_bits_of_keep() -> None:
    net = Net()
    kept = virtual(copy.deepcopy(net), policy="keep")
    with pytest.raises(BudgetError) as raised:
        virtual(copy.deepcopy(net), budget="24KiB")
    tight = virtual(copy.deepcopy(net), budget=raised.value.floor_nbytes)
    for batch in batches_of(3):
        for each in (kept, tight):
            loss_of(each, batch).backward()
    pairs = zip(kept.parameters(), tight.parameters(), strict=True)
    assert all(torch.equal(mine.grad, theirs.grad) for mine, theirs in pairs)


@pytest.mark.parametrize("to_none", [True, False])
def test_three_unequal_micro_batches_accumulate(to_none: bool) -> None:
    net, twin = twins()
    for turn in range(2):
        for each in (net, twin):
            each.zero_grad(set_to_none=to_none)
            for size in (6, 3, 1):
                (loss_of(each, batches_of(1, size, seed=size + turn)[0]) * size / 10).backward()
        assert_same_gradients(net, twin)


def test_no_gradient_is_overwritten_by_a_later_backward() -> None:
    net, _ = twins()
    first, second = batches_of(2)
    loss_of(net, first).backward()
    held = [param.grad for param in net.parameters()]
    copies = [grad.clone() for grad in held]
    net.zero_grad(set_to_none=True)
    loss_of(net, second).backward()
    assert all(torch.equal(a, b) for a, b in zip(held, copies, strict=True))
    starts = {param.grad.data_ptr() for param in net.parameters()}
    assert not starts & {grad.data_ptr() for grad in held}


def test_outputs_are_copies() -> None:
    net, _ = twins()
    with torch.no_grad():
        first = net(batches_of(1)[0][0])
        held = first.clone()
        net(batches_of(1, seed=9)[0][0])
    assert torch.equal(first, held)


def test_hooks_on_parameters_run() -> None:
    net, twin = twins()
    seen: list[Tensor] = []
    for each in (net, twin):
        each.conv1.weight.register_hook(lambda grad: 2 * grad)
        each.fc2.bias.register_post_accumulate_grad_hook(lambda param: seen.append(param.grad))
        loss_of(each, batches_of(1)[0]).backward()
    assert_same_gradients(net, twin)
    assert_close(*seen)


def test_torch_autograd_grad_gives_some_gradients() -> None:
    net, twin = twins()
    batch = batches_of(1)[0]
    found = [
        torch.autograd.grad(loss_of(each, batch), [each.conv1.weight, each.fc2.bias])
        for each in (net, twin)
    ]
    for mine, theirs in zip(*found, strict=True):
        assert_close(mine, theirs)
    assert all(param.grad is None for param in net.parameters())


def test_inputs_get_gradients() -> None:
    net, twin = twins()
    x, y = batches_of(1)[0]
    grads = []
    for each in (net, twin):
        image = x.clone().requires_grad_()
        loss_of(each, (image, y)).backward()
        grads.append(image.grad)
    assert_close(*grads)
    assert_same_gradients(net, twin)
    loss_of(net, (x, y)).backward()


def test_inputs_get_gradients_through_frozen_networks() -> None:
    net, twin = twins()
    x, y = batches_of(1)[0]
    grads = []
    for each in (net, twin):
        each.requires_grad_(False)
        image = x.clone().requires_grad_()
        loss_of(each, (image, y)).backward()
        grads.append(image.grad)
    assert_close(*grads)


def test_parameters_may_be_frozen_and_trained_again() -> None:
    net, twin = twins()
    for trained in (False, True, False, True):
        for each in (net, twin):
            each.zero_grad()
            each.conv1.requires_grad_(trained)
            loss_of(each, batches_of(1)[0]).backward()
        assert_same_gradients(net, twin)
        assert (net.conv1.weight.grad is not None) == trained


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_several_outputs_each_carry_gradients(weights: tuple[float, float]) -> None:
    net = Pair()
    twin = copy.deepcopy(net)
    x, y = batches_of(1)[0]
    outputs = []
    for each in (virtual(net), twin):
        inner, logits = each(x)
        outputs.append((inner.detach(), logits.detach()))
        terms = (inner.square().mean(), functional.cross_entropy(logits, y))
        sum(w * term for w, term in zip(weights, terms, strict=True) if w).backward()
    for mine, theirs in zip(*outputs, strict=True):
        assert_close(mine, theirs)
    for (name, param), other in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert (param.grad is None) == (other.grad is None), name
        if other.grad is not None:
            assert_close(param.grad, other.grad, name)


class Same(Net):
    """Returns one value twice, and its input."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.fc2(torch.relu(self.fc1(self.features(x).flatten(1))))
        return y, x, y


def test_an_output_returned_twice_gets_both_gradients() -> None:
    net = Same()
    twin = copy.deepcopy(net)
    x, y = batches_of(1)[0]
    for each in (virtual(net), twin):
        first, image, second = each(x)
        assert torch.equal(image, x)
        (functional.cross_entropy(first, y) + 3 * second.square().sum()).backward()
    assert_same_gradients(net, twin)


class TwoInputs(Net):
    """A second input that enters behind the features."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(self.features(x).flatten(1)))), self.fc2(z)


def test_several_inputs_are_taken() -> None:
    net = TwoInputs()
    twin = copy.deepcopy(net)
    x, y = batches_of(1)[0]
    z = torch.randn(BATCH, 10)
    made = virtualize(net, (x, z), policy="vdnn-all", chunk_size=CHUNK_SIZE)
    for each in (made, twin):
        first, second = each(x, z)
        functional.cross_entropy(first + second, y).backward()
    assert_same_gradients(net, twin)


def test_without_gradients_no_backward_is_planned() -> None:
    net, twin = twins()
    x, _ = batches_of(1)[0]
    with torch.no_grad():
        y = net(x)
    assert not y.requires_grad
    assert_close(y, twin(x).detach())
    assert net.schedule.graph.phase_split == len(net.schedule.graph.passes)
    with torch.inference_mode():
        assert_close(net(x), twin(x))


def test_eval_turns_dropout_off() -> None:
    net = Net(dropout=0.5)
    made = virtual(net)
    x, _ = batches_of(1)[0]
    with torch.no_grad():
        torch.manual_seed(1)
        first, second = made(x), made(x)
        assert not torch.equal(first, second)
        torch.manual_seed(1)
        assert torch.equal(made(x), first)
        made.eval()
        assert not net.dropout.training
        assert_close(made(x), net(x))
        made.train()
        net.dropout.eval()
        assert_close(made(x), net(x))


def test_a_second_forward_before_backward_says_what_is_lost() -> None:
    net, twin = twins()
    first, second = batches_of(2)
    early = loss_of(net, first)
    late = loss_of(net, second)
    with pytest.raises(EngineError, match="another forward of this network ran after it"):
        early.backward()
    late.backward()
    loss_of(twin, second).backward()
    assert_same_gradients(net, twin)


def test_backward_twice_says_that_the_maps_are_gone() -> None:
    net, _ = twins()
    loss = loss_of(net, batches_of(1)[0])
    loss.backward(retain_graph=True)
    with pytest.raises(EngineError, match="its backward has run already"):
        loss.backward()


def test_a_gradient_of_a_gradient_is_refused() -> None:
    net, _ = twins()
    x, y = batches_of(1)[0]
    x.requires_grad_()
    (grad,) = torch.autograd.grad(loss_of(net, (x, y)), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_copies_train_apart() -> None:
    net, twin = twins()
    loss_of(net, batches_of(1)[0]).backward()
    net.zero_grad()
    other = copy.deepcopy(net)
    assert isinstance(other, Virtualized)
    loss_of(other, batches_of(1)[0]).backward()
    assert all(param.grad is None for param in net.parameters())
    loss_of(twin, batches_of(1)[0]).backward()
    assert_same_gradients(other, twin)
    first, second = loss_of(net, batches_of(1)[0]), loss_of(other, batches_of(1)[0])
    first.backward()
    second.backward()


def test_pickles_plan_anew() -> None:
    net, twin = twins()
    loss_of(net, batches_of(1)[0])
    other = pickle.loads(pickle.dumps(net))
    loss_of(other, batches_of(1)[0]).backward()
    loss_of(twin, batches_of(1)[0]).backward()
    assert_same_gradients(other, twin)


def test_checkpoints_are_those_of_the_network() -> None:
    net, twin = twins()
    loss_of(net, batches_of(1)[0]).backward()
    assert list(net.state_dict()) == list(twin.state_dict())
    sizes = []
    for each in (net, twin):
        file = io.BytesIO()
        torch.save(each.state_dict(), file)
        sizes.append(file.tell())
    assert sizes[0] == sizes[1]
    with torch.no_grad():
        twin.fc2.bias.add_(1)
    net.load_state_dict(twin.state_dict())
    loss_of(net, batches_of(1)[0]).backward()
    net.zero_grad()
    with torch.no_grad():
        assert_close(net(batches_of(1)[0][0]), twin(batches_of(1)[0][0]))


def test_submodules_and_parameters_are_the_networks_own() -> None:
    net = Net()
    made = virtual(net)
    assert made.conv1 is net.conv1
    assert [name for name, _ in made.named_modules()] == [name for name, _ in net.named_modules()]
    names = zip(made.named_parameters(), net.named_parameters(), strict=True)
    assert all(a == b and mine is theirs for (a, mine), (b, theirs) in names)


def test_an_optimizers_state_counts_in_the_budget() -> None:
    trained = 4 * sum(param.numel() for param in Net().parameters())
    plain = virtual(Net()).schedule.graph.fixed_nbytes
    for make, states in (
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (torch.optim.AdamW, 2),
    ):
        net = Net()
        counted = virtual(net, optimizer=make(net.parameters())).schedule.graph.fixed_nbytes
        assert counted - plain == states * trained
    assert virtual(Net(), reserve="1MiB").schedule.graph.fixed_nbytes - plain == 2**20


def test_budgets_that_do_not_fit_are_named() -> None:
    with pytest.raises(BudgetError, match="below the floor") as raised:
        virtual(Net(), budget="24KiB")
    fitting = virtual(Net(), budget="min").schedule
    assert fitting.budget_nbytes == raised.value.floor_nbytes >= fitting.peak_nbytes
    with pytest.raises(InputError, match="'min' is not a number of bytes"):
        virtual(Net(), host_budget="min")
    with pytest.raises(HostMemoryError, match="raise host_budget"):
        virtual(Net(), host_budget=4096)


def test_a_failed_step_is_said_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tvdnn.kernels.pointwise.activation, "relu_grad_reference", interrupt)
    net, twin = twins()
    loss = loss_of(net, batches_of(1)[0])
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    with pytest.raises(EngineError, match=r"failed step \(KeyboardInterrupt"):
        net(batches_of(1)[0][0])
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.grad is None


def test_closed_networks_plan_again() -> None:
    net, twin = twins()
    net.close()
    with pytest.raises(EngineError, match="nothing is planned yet"):
        _ = net.plan
    loss_of(net, batches_of(1)[0]).backward()
    loss_of(twin, batches_of(1)[0]).backward()
    assert_same_gradients(net, twin)


def test_unknown_operations_are_named() -> None:
    with pytest.raises(UnsupportedOpError, match="1"):
        virtual(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softshrink(), nn.Flatten()))


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """One process as a group, for torch's wrappers."""
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_wrappers_for_many_gpus_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="DistributedDataParallel is not supported yet"):
        virtual(nn.parallel.DistributedDataParallel(Net()))
    wrapped = nn.parallel.DistributedDataParallel(virtual(Net()))
    with pytest.raises(EngineError, match="DistributedDataParallel around a virtualized network"):
        wrapped(batches_of(1)[0][0])
    sharded = torch.distributed.fsdp.fully_shard(
        Net(), mesh=torch.distributed.init_device_mesh("cpu", (1,))
    )
    with pytest.raises(InputError, match="FSDPModule is not supported yet"):
        virtual(sharded)
    old = torch.distributed.fsdp.FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
    with pytest.raises(InputError, match="FullyShardedDataParallel is not supported yet"):
        virtual(old)


def test_lazy_layers_get_their_parameters() -> None:
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    assert virtualize(net, torch.empty(2, 3, 4, 4))(torch.ones(2, 3, 4, 4)).shape == (2, 3)


def test_planning_another_shape_loses_an_open_forward() -> None:
    net, _ = twins()
    loss = loss_of(net, batches_of(1)[0])
    net.prepare(batches_of(1, size=2)[0][0])
    with pytest.raises(EngineError, match="maps of this forward are gone"):
        loss.backward()


def test_a_failed_preparation_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net, _ = twins()
    x, _ = batches_of(1, size=2)[0]
    with monkeypatch.context() as patch:
        patch.setattr("tvdnn.runtime.runner.bind", lambda *_, **__: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            net(x)
    assert net(x).shape[0] == 2


def test_autocast_regions_choose_the_type() -> None:
    net, twin = twins()
    batch = batches_of(1)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine, theirs = net(batch[0]), twin(batch[0])
        loss_of(net, batch).backward()
        loss_of(twin, batch).backward()
    assert net.schedule.graph.dtype == "bf16"
    assert mine.dtype == theirs.dtype == torch.bfloat16
    assert_near_in_bf16(mine, theirs)
    for param, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert_near_in_bf16(param.grad, other.grad)
    assert net(batch[0]).dtype == torch.float32
    assert net.schedule.graph.dtype == "fp32"
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(InputError, match="float16"):
        net(batch[0])


def test_a_type_asked_for_holds_under_autocast() -> None:
    net, twin = twins(dtype="fp32")
    x = batches_of(1)[0][0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x)
    assert net.schedule.graph.dtype == "fp32"
    assert_near_in_bf16(y, twin(x))


def test_a_bfloat16_network_trains_as_with_torch() -> None:
    """Parameters, gradients and outputs are bfloat16; the plan counts float32 copies beside."""
    twin = Net().bfloat16()
    net, exact = virtual(copy.deepcopy(twin)), copy.deepcopy(twin).float()
    x, y = batches_of(1)[0]
    for _ in range(2):  # the second step reads changed parameters
        for each in (net, twin, exact):
            each.zero_grad()
            loss_of(each, (x.to(next(each.parameters()).dtype), y)).backward()
        parameters = (each.parameters() for each in (net, twin, exact))
        for mine, theirs, true in zip(*parameters, strict=True):
            assert mine.grad.dtype == torch.bfloat16
            ours, torchs = ((param.grad - true.grad).norm() for param in (mine, theirs))
            assert ours <= 1.25 * torchs
            with torch.no_grad():
                torch._foreach_add_([mine, theirs, true], 0.1)
    fixed = net.schedule.graph.fixed
    count = sum(param.numel() for param in twin.parameters())
    assert (fixed["parameters"], fixed["reserve"]) == (4 * count, 2 * count)
    assert net.schedule.graph.dtype == "bf16"


def assert_near_in_bf16(mine: Tensor, theirs: Tensor) -> None:
    """Within a few roundings of bfloat16, 0.4% each, in the root of the mean square."""
    difference = (mine.float() - theirs.float()).norm()
    assert difference <= 0.02 * theirs.float().norm()


def test_outputs_have_the_inputs_memory_format() -> None:
    net, twin = Pair(), Pair()
    net = virtual(net)
    x = batches_of(1)[0][0]
    for given in (x, x.contiguous(memory_format=torch.channels_last)):
        for mine, theirs in zip(net(given), twin(given), strict=True):
            assert mine.stride() == theirs.stride()
            assert_close(mine, theirs)


class Outputs(NamedTuple):
    logits: Tensor
    inner: Tensor


class Returning(Pair):
    """Returns its outputs in another form."""

    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        inner, logits = super().forward(x)
        return self.form(logits=logits, inner=inner)


@pytest.mark.parametrize("form", [Outputs, dict])
def test_outputs_have_the_networks_form(form: Callable[..., Any]) -> None:
    net, twin = virtual(Returning(form)), Pair()
    x = batches_of(1)[0][0]
    mine, (inner, logits) = net(x), twin(x)
    assert type(mine) is form
    found = mine if isinstance(mine, dict) else mine._asdict()
    assert list(found) == ["logits", "inner"]
    assert_close(found["logits"], logits)
    assert_close(found["inner"], inner)
    found["logits"].sum().backward()
    assert net.fc2.weight.grad is not None
