"""A virtualized network as a module: copies, pickles, checkpoints, budgets, errors."""

import copy
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tvdnn
from tests.support.virtual_networks import (
    Net,
    assert_close,
    assert_same_gradients,
    batches_of,
    loss_of,
    twins,
    virtual,
)
from tvdnn.engine import Virtualized, virtualize
from tvdnn.errors import BudgetError, EngineError, HostMemoryError, InputError, UnsupportedOpError

pytestmark = pytest.mark.usefixtures("units_of_one")


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
def test_wrappers_for_many_gpus_inside_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="DistributedDataParallel lies inside"):
        virtual(nn.parallel.DistributedDataParallel(Net()))
    sharded = torch.distributed.fsdp.fully_shard(
        Net(), mesh=torch.distributed.init_device_mesh("cpu", (1,))
    )
    with pytest.raises(InputError, match="FSDPModule is not supported"):
        virtual(sharded)
    old = torch.distributed.fsdp.FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
    with pytest.raises(InputError, match="FullyShardedDataParallel is not supported"):
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


def test_wider_inputs_are_refused() -> None:
    """As torch refuses them; their digits would be lost in silence."""
    net, _ = twins()
    x, _ = batches_of(1, size=2)[0]
    with pytest.raises(InputError, match="is float64"):
        net(x.double())
    assert net(x).isfinite().all()
