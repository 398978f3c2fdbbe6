"""Why a network cannot be traced: all reasons at once, each by module and line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.traced_networks import Inputs, Twice, returning
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.ops.registry import SUPPORTED
from tvdnn.trace.trace import trace

CONSTANT = torch.ones(4, 4, 3, 3)  # made outside of a network


class Unsupported(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        self.reflect = torch.nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.act = torch.nn.Sequential(torch.nn.Softshrink(), torch.nn.ReLU())
        self.rnn = torch.nn.LSTM(4, 4)
        self.hooked = torch.nn.ReLU()
        self.hooked.register_full_backward_hook(lambda module, before, after: None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hooked(self.act(self.reflect(self.block(x))))
        left, right = x.chunk(2, 1)
        x = torch.cat([left, right.cumsum(1)], 1) + x[:, :1]
        x, _ = functional.max_pool2d(x, 2, return_indices=True)
        x = functional.conv2d(x, CONSTANT)
        torch.softmax(x, 1)
        return self.rnn(x.std((2, 3)))[0]


def without_place(line: str) -> str:
    return re.sub(rf" at \S*{Path(__file__).name}:\d+$", "", line)


def test_everything_unsupported_is_listed_at_once() -> None:
    module = Unsupported()
    running = module.block[1].running_mean.clone()
    with pytest.raises(UnsupportedOpError) as caught:
        trace(module, (torch.ones(2, 3, 12, 12),))
    lines = str(caught.value).splitlines()
    here = Path(__file__).relative_to(Path.cwd())
    assert re.fullmatch(rf"  act\.0: Softshrink at {here}:\d+", lines[1])
    assert [without_place(line) for line in lines] == [
        "tvdnn cannot trace this network:",
        "  act.0: Softshrink",
        "  hooked: ReLU with backward hooks, which would not run (remove them)",
        "  Unsupported: cumsum",
        "  Unsupported: max_pool2d_with_indices",
        "  Unsupported: conv2d with a weight or bias that is not a parameter or buffer",
        "  rnn: LSTM",
        f"supported: {SUPPORTED}",
    ]
    assert torch.equal(module.block[1].running_mean, running)
    assert module.block[1].num_batches_tracked == 0


class Deciding(torch.nn.Module):
    """Its course and the sizes of its maps hang on values, in branches, loops and a block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Counted()
        self.gate = torch.nn.RReLU()

    def forward(self, x: Tensor) -> Tensor:
        if x.amax() > 1:
            x = x.relu()
        while x.amin() < 0:
            x = x.tanh()
        x = self.block(x)
        x = self.gate(x)
        return x.view(int(x.argmax()), -1).cosh()


class Counted(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x[x > 0]
        return x.view(x.shape[0], 1)


def test_control_flow_and_dynamic_shapes_are_listed_with_all_else() -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        trace(Deciding(), (torch.ones(2, 3),))
    values = "by which control flow or a shape would hang on the values of a tensor"
    lines = str(caught.value).splitlines()
    assert [without_place(line) for line in lines] == [
        "tvdnn cannot trace this network:",
        "  Deciding: amax of (2, 3) over () (it takes dimensions other than the batch)",
        f"  Deciding: gt as a condition, {values}",
        "  Deciding: amin of (2, 3) over () (it takes dimensions other than the batch)",
        f"  Deciding: lt as a condition, {values}",
        "  block: gt",
        "  block: getitem",
        "  gate: RReLU (tvdnn.nn.LeakyReLU has a fixed slope)",
        f"  Deciding: argmax as a number, {values}",
        "  Deciding: cosh",
        f"supported: {SUPPORTED}",
    ]
    assert all(without_place(line) != line for line in lines[1:-1])


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda x: {"logits": {"main": {x}}}, "returns set where it may"),
        (lambda x: (x, object()), "returns object where"),
        (lambda x: ([None], {}), "returns no tensor where"),
        (lambda x: (), "returns no tensor where"),
        (lambda x: torch.ones(2), "does not come from its inputs"),
        (lambda x: x if x.sum() > 0 else -x, "Functional: .*control flow"),
        (
            lambda x: torch.relu(torch.arange(8.0).view(2, 4)) + x,
            r"Functional: add of a map and a parameter of shape \(2, 4\)",
        ),
        (lambda x: functional.linear(torch.ones(2, 4), x), "does not come from the inputs"),
        (lambda x: functional.linear(x.unsqueeze(1), x), "linear with a weight .* not a parameter"),
        (lambda x: torch.cat([x, torch.eye(2)], 1), "cat of a tensor that does not come"),
        (lambda x: functional.dropout2d(x), "dropout2d of"),
        (lambda x: functional.leaky_relu(x, -0.1), "leaky_relu with a slope of -0.1"),
        (lambda x: x.T, "Functional: T"),
        (lambda x: x.long(), "Functional: long"),
        (
            lambda x: x * float(x.new_full((), 2.0)),
            r"Functional: float\(\) reads a value of a tensor that forward computes, .* at \S*:\d+",
        ),
    ],
)
def test_what_cannot_be_traced_says_so(way: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(returning(way), (torch.empty(2, 4),))


class Requiring(torch.nn.Linear):
    """Sets requires_grad of a map that a parameter has made, which torch forbids."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y.requires_grad = True
        return y


def test_requires_grad_of_a_computed_map_is_not_set() -> None:
    module = Requiring(4, 2)
    with pytest.raises(RuntimeError, match="requires_grad flags of leaf"):
        module(torch.empty(2, 4))
    with pytest.raises(InputError, match=r"Requiring: .*requires_grad flags of leaf.* at \S*:\d+"):
        trace(module, (torch.empty(2, 4),))


def test_parameters_are_float32_or_bfloat16() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3).bfloat16(), torch.nn.Linear(3, 3).half())
    with pytest.raises(InputError, match=r"parameter 1\.weight is float16.*\.float\(\)"):
        trace(module, (torch.empty(2, 3),))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.empty(2),), r"image has shape \(2,\); inputs are"),
        (
            (torch.empty(2, 3), torch.empty(3, 3)),
            "others0 has a batch of 3 where the first input's is 2",
        ),
        ((torch.zeros(2, 3, dtype=torch.int64),), "image is int64"),
        ((), "no example inputs"),
    ],
)
def test_inputs_are_checked(inputs: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trace(Inputs(), inputs)


def test_too_many_inputs() -> None:
    with pytest.raises(InputError, match="does not take 2 example inputs"):
        trace(Twice(), (torch.empty(2, 4), torch.empty(2, 4)))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(torch.nn.Linear(5, 2), (2, 4)), (torch.nn.Conv2d(3, 4, 2), (2, 3, 9, 1))],
)
def test_sizes_that_do_not_fit_name_the_layer(
    layer: torch.nn.Module, shape: tuple[int, ...]
) -> None:
    named = re.escape(f"1: {layer} does not take a tensor of shape {shape}: ")
    with pytest.raises(InputError, match=rf"{named}.* at \S*test_refused_calls.py:\d"):
        trace(torch.nn.Sequential(torch.nn.ReLU(), layer), (torch.empty(*shape),))
