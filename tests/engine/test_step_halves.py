"""Changes between a virtualized network's forward and its backward, beside torch."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.modules import module as modules

from tests.support.beside_torch import assert_close
from tvdnn.engine import Trainer, virtualize
from tvdnn.errors import EngineError, InputError, UnsupportedOpError


class Returned(nn.Module):
    """Two branches that share a layer, in what `form` makes of their maps."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any] = lambda y, z: (y, z)) -> None:
        super().__init__()
        self.stem, self.left = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.right, self.form = nn.Linear(4, 2), form

    def forward(self, x: Tensor) -> Any:
        h = self.stem(x)
        return self.form(self.left(h).relu(), self.right(h.detach().mean((2, 3))))


def batch() -> Tensor:
    return torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("number", [0, 1])
def test_an_output_that_no_loss_reads_gives_no_gradients(number: int) -> None:
    """No zeros either: an optimizer moves a parameter of zero gradient by momentum and decay."""
    torch.manual_seed(0)
    net, x = Returned(), batch()
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    model = virtualize(copy.deepcopy(net), inputs[0])
    net(inputs[0])[number].square().sum().backward()
    model(inputs[1])[number].square().sum().backward()
    for (name, one), other in zip(net.named_parameters(), model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            assert_close(other.grad, one.grad, name)
    assert (inputs[0].grad is None) == (inputs[1].grad is None)


FORMS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda y, z: {"a": y, "b": [z, None]},
    lambda y, z: (y, (z, {"c": y}), 3),
    lambda y, z: [y.chunk(2, 1), z],
    lambda y, z: (y, None),
]


@pytest.mark.parametrize("form", FORMS)
def test_outputs_are_put_together_as_the_network_has_them(form: Any) -> None:
    torch.manual_seed(0)
    net, x = Returned(form), batch()
    torch.testing.assert_close(virtualize(net, x)(x), net(x))


def test_a_parameter_changed_between_the_halves_is_refused() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)), batch()
    model = virtualize(net, x)
    y = model(x)
    with torch.no_grad():
        net[2].weight.mul_(2)
    with pytest.raises(EngineError, match=r"parameter 2\.weight was changed in place"):
        y.sum().backward()
    model(x).sum().backward()


@pytest.mark.parametrize("name", ["1.weight", "1.bias"])
def test_a_frozen_parameter_that_backward_reads_is_refused_when_changed(name: str) -> None:
    """The mask behind the normalization is computed again."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    net[1].requires_grad_(False)
    model, x = virtualize(net, batch()), batch()
    y = model(x)
    with torch.no_grad():
        net.get_parameter(name).add_(1)
    with pytest.raises(EngineError, match=f"parameter {name} was changed in place"):
        y.sum().backward()


def test_a_frozen_parameter_that_only_forward_reads_may_change() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    net[:2].requires_grad_(False)
    model, x, found = virtualize(net, batch()), batch(), []
    for change in (0.0, 1.0):
        y = model(x)
        with torch.no_grad():
            net[1].bias.add_(change)
        net.zero_grad()
        y.sum().backward()
        found.append(net[3].weight.grad.clone())
    assert torch.equal(*found)


@contextmanager
def hook_on_all(register: Callable[..., Any]) -> Iterator[None]:
    handle = register(lambda *given: None)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "register",
    [
        modules.register_module_forward_hook,
        modules.register_module_forward_pre_hook,
        modules.register_module_full_backward_hook,
    ],
)
def test_hooks_on_all_modules_are_refused(register: Callable[..., Any]) -> None:
    net, x = nn.Sequential(nn.Conv2d(3, 4, 1)), batch()
    with hook_on_all(register), pytest.raises(UnsupportedOpError, match="hooks on all modules"):
        virtualize(net, x)
    model = virtualize(net, x)
    with hook_on_all(register), pytest.raises(UnsupportedOpError, match="hooks on all modules"):
        model(x)
    torch.testing.assert_close(model(x), net(x))


def test_transforms_of_functions_are_refused() -> None:
    model = virtualize(nn.Sequential(nn.Conv2d(3, 4, 1)), batch())
    with pytest.raises(EngineError, match=r"transforms of torch\.func"):
        torch.func.vmap(model)(batch()[None])


@pytest.mark.parametrize("name", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_trainer_refuses_hooks_on_gradients(name: str) -> None:
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(60, 3)), batch()
    trainer = Trainer(net, x)
    handle = getattr(net[1].weight, name)(lambda grad: None)
    with pytest.raises(InputError, match=r"parameter 1\.weight has hooks on its gradient"):
        trainer.step(x, torch.tensor([0, 2]))
    handle.remove()
    trainer.step(x, torch.tensor([0, 2]))


def test_an_expanded_parameter_is_refused() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1))
    net[0].bias = nn.Parameter(torch.ones(1).expand(4))
    with pytest.raises(InputError, match=r"parameter 0\.bias is expanded"):
        virtualize(net, batch())


def test_a_parameter_with_gaps_is_refused_where_it_trains() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    torch.manual_seed(0)
    net[0].weight = nn.Parameter(torch.randn(8, 64)[:, :8])
    x = torch.randn(4, 8)
    with pytest.raises(InputError, match=r"parameter 0\.weight of strides \(64, 1\) leaves gaps"):
        virtualize(net, x)
    net[0].weight.requires_grad_(False)
    virtual = virtualize(net, x)
    torch.testing.assert_close(virtual(x), net(x))
    net[0].weight.requires_grad_()
    with pytest.raises(InputError, match="leaves gaps"):
        virtual(x)


def test_threads_take_turns_in_one_network() -> None:
    """Other modules run as they are, while a forward is traced in another thread."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).eval()
    other, inputs = nn.Sequential(nn.Linear(3, 3)), [batch() * n for n in range(6)]
    model = virtualize(net, batch())
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def run(number: int) -> None:
        with torch.no_grad():
            found[number] = model(inputs[number]), other(torch.ones(2, 3))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        for number, x in enumerate(inputs):
            torch.testing.assert_close(found[number], (net(x), other(torch.ones(2, 3))))


def halved(x: Tensor) -> Tensor:
    return x * 0.5


def test_hooks_on_what_is_saved_are_refused() -> None:
    net, x = nn.Conv2d(3, 4, 1), torch.randn(2, 3, 5, 5)
    virtual, trainer = virtualize(net, x), Trainer(nn.Conv2d(3, 4, 1), x, loss=nn.MSELoss())
    with saved_tensors_hooks(halved, lambda x: x):
        with pytest.raises(EngineError, match=r"saved_tensors_hooks is around .*call halved"):
            virtual(x)
        with pytest.raises(EngineError, match=r"saved_tensors_hooks is around .*call halved"):
            trainer.step(x, torch.randn(2, 4, 5, 5))
        with torch.no_grad():
            assert_close(virtual(x), net.double()(x.double()), "output")


def test_torchs_own_hooks_on_what_is_saved_change_nothing() -> None:
    net, x = nn.Conv2d(3, 4, 1), torch.randn(2, 3, 5, 5)
    virtual = virtualize(net, x)
    with save_on_cpu():
        virtual(x).sum().backward()
    exact = copy.deepcopy(net).double()
    exact.zero_grad()
    exact(x.double()).sum().backward()
    for mine, theirs in zip(net.parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert_close(mine.grad, theirs.grad, "gradient")
