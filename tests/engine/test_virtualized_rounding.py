"""virtualize with rounded maps: a backward is measured before a gradient follows from them."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.support.rounding import (
    BATCH,
    CLASSES,
    SHAPE,
    WIDE,
    ZERO_GRADIENTS,
    Make,
    batches,
    normalized,
    relative_error,
    smooth,
)
from tests.support.virtual_rounding import (
    are_equal,
    budget_of,
    gradients_of,
    kept,
    less_than_the_error,
    loss_of,
    virtual_of,
)
from tvdnn.engine import virtualize
from tvdnn.errors import EngineError, InputError
from tvdnn.graph import FP8
from tvdnn.planner.ir.page_map import PageMap
from tvdnn.runtime.arena import Arena

DROPPED = "a gradient is wrong by more than"


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize("make", [smooth, normalized])
def test_reported_errors_are_those_of_the_gradients_that_backward_returns(
    make: Make, kernels: str
) -> None:
    exact, net = kept(make, kernels=kernels), virtual_of(make, WIDE, kernels=kernels)
    rounding = dict(net.plan.rounding)
    assert rounding
    assert net.rounding is None
    ((x, y),) = batches(1)
    assert torch.equal(exact(x), net(x))  # forward is exact
    assert net.rounding is None
    theirs, mine = gradients_of(exact, (x, y)), gradients_of(net, (x, y))
    report = net.rounding
    assert report is not None
    assert (report.measured, report.dropped, report.rounded) == (1, (), rounding)
    found = {name: relative_error(mine[name], theirs[name]) for name in mine}
    assert max(found[name] for name in found.keys() - ZERO_GRADIENTS) > 0
    for name, error in found.items():
        if make is smooth or name not in ZERO_GRADIENTS:
            assert report.errors[name] == pytest.approx(error, rel=1e-5, abs=1e-12)
        else:  # its gradient is zero but for rounding
            assert report.errors[name] < 0.1
    assert are_equal(gradients_of(net, (x, y)), mine)  # as later steps have them
    assert net.rounding is report


def dropping() -> nn.Sequential:
    net = normalized()
    return nn.Sequential(*net[:3], nn.Dropout(0.5), *net[3:])


@pytest.mark.slow
def test_measuring_changes_no_bit_of_the_state_nor_a_random_number() -> None:
    """Outputs, accumulated gradients, parameters, statistics and random numbers."""
    nets = [virtual_of(dropping, WIDE, lossy_check_every=every) for every in (1, 1000)]
    optimizers = [torch.optim.SGD(net.parameters(), 0.05, momentum=0.9) for net in nets]
    seen: list[list[Tensor]] = [[], []]
    for net, optimizer, tensors in zip(nets, optimizers, seen, strict=True):
        torch.manual_seed(3)
        for number, batch in enumerate(batches(6)):
            loss = loss_of(net, batch)
            before = [each.clone() for each in net.buffers()]
            loss.backward()
            assert all(map(torch.equal, before, net.buffers()))
            tensors += [loss.detach(), torch.get_rng_state()]
            tensors += [param.grad.clone() for param in net.parameters()]
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        tensors += net.state_dict().values()
    assert all(map(torch.equal, *seen))
    assert nets[0].plan.rounded
    found = [net.rounding.measured for net in nets if net.rounding is not None]
    assert found == [6, 1]


@pytest.mark.slow
def test_a_codec_over_the_limit_rounds_no_gradient_and_is_dropped() -> None:
    """Each gradient is exact, and the next plan is made beside training."""
    exact, net = kept(normalized), virtual_of(normalized, less_than_the_error())
    first = net.plan.rounding
    assert set(first.values()) == {FP8}
    given = batches(6)
    with pytest.warns(RuntimeWarning, match=DROPPED):
        assert are_equal(gradients_of(net, given[0]), gradients_of(exact, given[0]))
    assert all(map(torch.equal, net.buffers(), exact.buffers()))
    assert not net.plan.rounded
    report = net.rounding
    assert report is not None
    assert report.worst[0] > report.limit
    assert {each.buffer for each in report.dropped} <= first.keys()
    assert all(each.error > report.limit and each.form == FP8 for each in report.dropped)
    gone = {each.buffer for each in report.dropped}
    for batch in given[1:]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of codecs that take the place of the first
            net.settle()
            mine, theirs = gradients_of(net, batch), gradients_of(exact, batch)
        assert not any(net.plan.rounding.get(name) == FP8 for name in gone)
        assert net.plan.rounded or are_equal(mine, theirs)
        assert net.rounding is not None
        assert not net.plan.rounded or net.rounding.worst[0] <= report.limit
    assert not net.replanning


def test_a_later_check_finds_what_has_come_over_the_limit() -> None:
    """What is normalized gets a large mean: rounding takes its deviations away."""
    exact = kept(normalized)
    net = virtual_of(normalized, WIDE, lossy_check_every=2)
    given = batches(3)
    gradients_of(net, given[0])
    before = net.rounding
    assert before is not None
    with torch.no_grad():
        for each in (net, exact):
            for name in ZERO_GRADIENTS:
                each.get_parameter(name).add_(50.0)
    gradients_of(net, given[1])
    assert net.rounding is before
    assert net.plan.rounded
    with pytest.warns(RuntimeWarning, match=f"{DROPPED} 50.00%"):
        found = gradients_of(net, given[2])
    assert are_equal(found, gradients_of(exact, given[2]))
    after = net.rounding
    assert after is not None
    assert after.measured == 2
    assert after.dropped
    assert not net.plan.rounded


def test_forwards_without_a_backward_are_not_measured() -> None:
    net, exact = virtual_of(smooth, WIDE), kept(smooth)
    first, second = batches(2)
    loss_of(net, first)
    with torch.no_grad():
        assert torch.equal(net(second[0]), exact(second[0]))
    assert net.rounding is None
    gradients_of(net, second)
    assert net.rounding is not None
    assert net.rounding.measured == 1


@pytest.mark.parametrize("factor", [0.0, float("inf"), float("nan")])
def test_gradients_that_tell_no_error_are_exact_and_measured_again(factor: float) -> None:
    """Such as those of a loss whose scale was too large."""
    net, exact = virtual_of(smooth, WIDE), kept(smooth)
    first, second = batches(2)
    for each in (net, exact):
        each(first[0]).backward(torch.full((BATCH, CLASSES), factor))
    for mine, theirs in zip(net.parameters(), exact.parameters(), strict=True):
        assert torch.equal(mine.grad.isnan(), theirs.grad.isnan())
        assert torch.equal(mine.grad.nan_to_num(), theirs.grad.nan_to_num())
    assert net.rounding is None
    assert net.plan.rounded
    gradients_of(net, second)
    assert net.rounding is not None


def test_a_batch_or_a_buffer_that_changes_between_the_halves_is_as_the_user_left_it() -> None:
    net, exact = virtual_of(normalized, less_than_the_error()), kept(normalized)
    ((x, y),) = batches(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in (net, exact):
            given = x.clone()
            loss = functional.cross_entropy(each(given), y)
            given.fill_(7.0)
            for buffer in each.buffers():
                buffer.fill_(3)
            loss.backward()
    assert net.rounding is not None
    assert net.rounding.dropped
    pairs = zip(net.parameters(), exact.parameters(), strict=True)
    assert all(torch.equal(mine.grad, theirs.grad) for mine, theirs in pairs)
    assert all(buffer.eq(3).all() for buffer in net.buffers())


def test_the_gradient_of_an_input_is_measured_too() -> None:
    net, found = virtual_of(smooth, WIDE), []
    ((x, y),) = batches(1)
    for each in (net, kept(smooth)):
        given = x.clone().requires_grad_()
        functional.cross_entropy(each(given), y).backward()
        found.append(given.grad)
    assert net.rounding is not None
    error = relative_error(*found)
    assert error > 0
    assert net.rounding.errors["input input"] == pytest.approx(error, rel=1e-5)


def normalizing() -> nn.Sequential:
    """The weights of its convolutions are computed of scales and directions."""
    net = smooth()
    net[2], net[4] = map(parametrizations.weight_norm, (net[2], net[4]))
    return net


def test_gradients_by_computed_parameters_are_those_of_parameters() -> None:
    exact, net = kept(normalizing), virtual_of(normalizing, WIDE)
    (batch,) = batches(1)
    theirs, mine = gradients_of(exact, batch), gradients_of(net, batch)
    report = net.rounding
    assert report is not None
    assert report.errors.keys() == mine.keys()
    errors = {name: relative_error(mine[name], theirs[name]) for name in mine}
    assert any(errors[name] > 0 for name in errors if "weight" in name)
    assert report.errors == pytest.approx(errors, rel=1e-4, abs=1e-12)


class Counting(nn.Module):
    """Each forward counts itself, and scales by the count."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = smooth()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.layers(x * self.count)


def test_a_forward_that_changes_the_network_does_so_once() -> None:
    nets = [kept(Counting), virtual_of(Counting, WIDE, lossy_check_every=1)]
    for batch in batches(3):
        theirs, mine = (gradients_of(net, batch) for net in nets)
        assert nets[1].rounding is not None
        for name, error in nets[1].rounding.errors.items():
            found = relative_error(mine[name], theirs[name])
            assert error == pytest.approx(found, rel=1e-4, abs=1e-12)
    assert [net.count.item() for net in nets] == [3, 3]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = smooth()
        self.other = nn.Linear(CLASSES, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layers(x)
        return y, self.other(y)


@pytest.mark.slow
def test_an_output_without_a_gradient_gives_none_in_a_measured_step() -> None:
    exact, net = kept(Two), virtual_of(Two, WIDE)
    ((x, y),) = batches(1)
    for each in (exact, net):
        functional.cross_entropy(each(x)[0], y).backward()
    assert net.rounding is not None
    assert net.rounding.errors["other.weight"] == 0.0
    for (name, mine), theirs in zip(net.named_parameters(), exact.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None) == name.startswith("other"), name


@pytest.mark.slow
def test_no_budget_is_exceeded_while_gradients_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arena and slab stay as the present plan has them, and all probes run in that plan."""
    net = virtual_of(normalized, less_than_the_error(), lossy_check_every=1)
    arena, sizes = net._steps.core_now().memory.arena, []
    reserve = Arena.reserve

    def noted(self: Arena, nbytes: int, pages: PageMap | None = None) -> None:
        reserve(self, nbytes, pages)
        if self is arena:
            sizes.append(arena.bytes.numel())

    monkeypatch.setattr(Arena, "reserve", noted)
    budget = budget_of(normalized)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in batches(4):
            gradients_of(net, batch)
            sizes.append(arena.bytes.numel())
            net.settle()
            assert net.schedule.peak_nbytes <= budget == net.schedule.budget_nbytes
    assert max(sizes) + net.schedule.graph.fixed_nbytes <= budget


def test_a_measured_backward_runs_once() -> None:
    net = virtual_of(smooth, WIDE)
    loss = loss_of(net, batches(1)[0])
    loss.backward(retain_graph=True)
    with pytest.raises(EngineError, match="the maps of this forward are gone"):
        loss.backward()


def test_a_copy_measures_its_own_gradients() -> None:
    net = virtual_of(smooth, WIDE)
    (batch,) = batches(1)
    gradients_of(net, batch)
    copied, sent = copy.deepcopy(net), pickle.loads(pickle.dumps(virtual_of(smooth, WIDE)))
    for each in (copied, sent):
        assert each.rounding is None
        gradients_of(each, batch)
    assert copied.rounding is not None
    assert copied.rounding.measured == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allow": "lossy"}, "allow='lossy' is not known; write for example"),
        ({"allow": "lossy:1.5"}, "allow='lossy:1.5' lets gradients be wrong by 150%"),
        ({"allow": "lossy:0.03", "policy": "keep"}, "policy 'keep' takes no allow"),
        ({"allow": "lossy:0.03", "lossy_check_every": 0}, "lossy_check_every is 0"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        virtualize(smooth(), torch.empty(BATCH, *SHAPE), **options)


@pytest.mark.gpu
def test_on_a_gpu_measuring_changes_no_bit() -> None:
    given = [(x.cuda(), y.cuda()) for x, y in batches(3)]
    nets = [virtual_of(normalized, WIDE, "cuda", lossy_check_every=every) for every in (1, 1000)]
    for batch in given:
        assert are_equal(*(gradients_of(net, batch) for net in nets))
    assert nets[0].plan.rounded
    assert nets[0].rounding is not None
    assert nets[0].rounding.measured == 3
