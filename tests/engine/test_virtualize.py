"""virtualize under torch's autograd: allowed user loops, and errors that explain the others."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.virtual_networks import (
    BATCH,
    CHUNK_SIZE,
    Net,
    Pair,
    assert_close,
    assert_same_gradients,
    batches_of,
    loss_of,
    twins,
    virtual,
)
from tvdnn.engine import virtualize
from tvdnn.errors import BudgetError

pytestmark = pytest.mark.usefixtures("units_of_one")


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
