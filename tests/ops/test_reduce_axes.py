"""Networks that reduce maps over dimensions: keep's bits under any plan, gradients as torch's."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.ops.test_remap import SHAPE, Returns, kinds
from tests.support.exact import Functional
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

Way = Callable[[Tensor], Tensor]


def test_means_of_pixels_are_poolings() -> None:
    assert kinds(Returns(lambda x: x.mean((2, 3)))) == ["adaptive_avg_pool2d"]
    assert kinds(Returns(lambda x: x.mean((-1, -2), keepdim=True))) == ["adaptive_avg_pool2d"]


def test_a_sum_of_one_element_is_a_view() -> None:
    found = kinds(Returns(lambda x: x.unsqueeze(2).sum(2).unflatten(1, (6, 1)).amax(2)))
    assert "reduce_axes" not in found


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda x: x.sum(), r"sum of \(2, 3, 6, 6\) over None"),
        (lambda x: x.amax((0, 1)), r"amax of \(2, 3, 6, 6\) over \(0, 1\)"),
        (lambda x: x.max(1)[1], "max with indices"),
        (lambda x: x.norm(1, 2), "norm of order 1"),
        (lambda x: x.var(), "var of .* over None"),
        (lambda x: x.sum(1, dtype=torch.float64), "sum in float64"),
        (lambda x: torch.max(x), "max or min over the batch"),
    ],
)
def test_other_reductions_are_refused(way: Way, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Functional(lambda _, x: way(x)), [torch.empty(2, *SHAPE)])
