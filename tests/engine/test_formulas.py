"""Which tensors a step can compute of parameters and buffers, and why others are refused."""

import gc
import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.computed_networks import SHAPE, batch_of, seeded
from tvdnn import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.ops.torch_peak import peak_nbytes
from tvdnn.trace.state.meta_answers import answer
from tvdnn.trace.trace import trace

pytestmark = pytest.mark.usefixtures("few_trials")


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


FOUR = torch.ones(4, 4, 1, 1)  # made outside of a network


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
        self.tables = [torch.rand(4, 4, 1, 1)]
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
        (doubled_in_place, "whose computation changes a tensor that it reads"),
        (set_anew, "data changes conv.weight of the module"),
        (
            lambda net: net.conv.weight * net.tables[0].to("meta"),
            "neither a parameter nor a buffer",
        ),
        (hooked, "register_hook of a parameter"),
        (lambda net: FOUR, "is not a parameter or buffer"),
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
    with pytest.raises(
        UnsupportedOpError, match="whose computation changes a tensor that it reads"
    ):
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
    here = r"at \S*test_formulas.py:\d+"
    with pytest.raises(UnsupportedOpError, match=f"neither a parameter nor a buffer.*{here}"):
        trace(Fixed(factor), (torch.randn(3, 4, 6, 5),))


def test_copies_of_constants_end_with_the_call_that_reads_them() -> None:
    """Objects that wait for a search for cycles stay until it runs, and count."""
    twin, constant = torch.ones(2, device="meta"), torch.full((2,), 0.5)

    def run() -> None:
        for _ in range(9):
            answer(torch.mul, (twin, constant), {}, torch.device("cpu"))

    gc.disable()
    try:
        assert peak_nbytes(run, twin.device) == constant.nbytes + twin.nbytes
    finally:
        gc.enable()
