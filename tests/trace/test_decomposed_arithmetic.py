"""Arithmetic that the tracer follows as several calls: torch's gradients, and refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.beside_torch import assert_trains_as_torch
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

SHAPE = (3, 4, 5, 6)
Function = Callable[[Tensor, Tensor], Tensor]
FUNCTIONS: dict[str, Function] = {
    "normalize channels": lambda x, p: functional.normalize(x, dim=1),
    "normalize rows": lambda x, p: functional.normalize(x, dim=-1, eps=0.1),
    "normalize pixels": lambda x, p: functional.normalize(x.flatten(2), dim=2),
    "normalize zeros": lambda x, p: functional.normalize(x.relu() * 0, dim=1, eps=0.5) + x,
    "cosines": lambda x, p: functional.cosine_similarity(x, x.tanh()).unsqueeze(1) * x,
    "cosines of small maps": lambda x, p: nn.CosineSimilarity(-3, 2.0)(x, x.tanh())[:, None] * p,
    "cosines of rows": lambda x, p: torch.cosine_similarity(x, x.exp(), dim=3),
    "cosines of vectors": lambda x, p: functional.cosine_similarity(x[:, :, 0, 0], x[:, :, 1, 1]),
    "distances": lambda x, p: functional.pairwise_distance(x[:, :, 0, 0], x[:, :, 1, 1]),
    "distances of rows": lambda x, p: nn.PairwiseDistance(2, 0.1, keepdim=True)(x, 2 * x) * x,
    "addcmul": lambda x, p: torch.addcmul(x, x, x.tanh(), value=0.5),
    "addcmul of a parameter": lambda x, p: x.addcmul(x.tanh(), p),
    "addcmul to a parameter": lambda x, p: torch.addcmul(p, x, x),
    "rsub": lambda x, p: torch.rsub(x, x.tanh(), alpha=2),
    "rsub of a number": lambda x, p: torch.rsub(x, 1),
    "rsub of a parameter": lambda x, p: torch.rsub(p, x),
    "lerp": lambda x, p: torch.lerp(x, x.tanh(), 0.3) + x.lerp(x * x, 0.8),
    "lerp by a parameter": lambda x, p: torch.lerp(x, x.tanh(), p),
    "repeated": lambda x, p: x.repeat_interleave(2, 1) * torch.repeat_interleave(p, 2, 0),
    "repeated to a size": lambda x, p: x.repeat_interleave(3, dim=2, output_size=3 * x.shape[2]),
    "repeated once": lambda x, p: x.repeat_interleave(1, -1).relu_() + x,
    "repeated of one": lambda x, p: x.mean(2, keepdim=True).repeat_interleave(5, 2).relu_() + x,
    "a number to a map": lambda x, p: 2**x + torch.pow(0.5, x),
}


class Arithmetic(nn.Module):
    """A function between two convolutions, or of one map and a parameter of its channels."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function, self.conv = function, nn.Conv2d(4, 4, 1)
        self.param = nn.Parameter(torch.rand(4, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x), self.param)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_torchs(name: str) -> None:
    torch.manual_seed(2)
    assert_trains_as_torch(Arithmetic(FUNCTIONS[name]), torch.randn(SHAPE, requires_grad=True))


@pytest.mark.parametrize(
    "given",
    [
        {"repeats": 0, "dim": 1},
        {"repeats": 2, "dim": 4},
        {"repeats": torch.tensor(2), "dim": 1},
        {"repeats": 2, "dim": 1, "output_size": 9},
    ],
)
def test_other_repetitions_are_refused(given: dict[str, Any]) -> None:
    net = Arithmetic(lambda x, p: x.repeat_interleave(**given))
    with pytest.raises(UnsupportedOpError, match="repeat_interleave"):
        trace(net, (torch.randn(SHAPE),))


def test_a_quotient_by_norms_of_another_order_is_refused() -> None:
    net = Arithmetic(lambda x, p: functional.normalize(x, p=1.0, dim=1))
    with pytest.raises(UnsupportedOpError, match="norm of order 1"):
        trace(net, (torch.randn(SHAPE),))
