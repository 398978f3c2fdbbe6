"""Types, memory formats and containers of a virtualized network's outputs."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.virtual_networks import (
    Net,
    Pair,
    assert_close,
    batches_of,
    loss_of,
    twins,
    virtual,
)
from tvdnn.errors import InputError

pytestmark = pytest.mark.usefixtures("units_of_one")


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
    """The RMS error is a few roundings of bfloat16, 0.4% each."""
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


def retain(output: Tensor) -> None:
    output.retain_grad()


def hook(output: Tensor) -> None:
    output.register_hook(lambda grad: 0 * grad)


@pytest.mark.parametrize("wants_gradient", [retain, hook])
def test_hooks_on_an_output_of_which_others_are_made_are_refused(
    wants_gradient: Callable[[Tensor], None],
) -> None:
    """Of an output that no other is made of they see the whole gradient."""
    pair, twin = virtual(Pair()), Pair()
    x, y = batches_of(1)[0]
    inner, logits = pair(x)
    wants_gradient(inner)
    with pytest.raises(InputError, match="output 0 of the virtualized network has hooks"):
        (inner.square().mean() + functional.cross_entropy(logits, y)).backward()
    for net in (pair, twin):
        inner, logits = net(x)
        wants_gradient(logits)
        net.zero_grad()
        (inner.square().mean() + functional.cross_entropy(logits, y)).backward()
    for param, other in zip(pair.parameters(), twin.parameters(), strict=True):
        assert_close(param.grad, other.grad)
