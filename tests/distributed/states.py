"""States of trained networks, compared."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

RATIO: Final = 1.25  # of ours to torch's relative errors
LEAST_ERROR: Final = 1e-7  # below which rounding of single numbers tells which is larger


def error_of(mine: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """The relative error of a state's floating-point tensors, all together."""
    pairs = [(mine[n].double(), each) for n, each in exact.items() if each.is_floating_point()]
    wrong = sum(float((mine - each).square().sum()) for mine, each in pairs)
    return (wrong / sum(float(each.square().sum()) for _, each in pairs)) ** 0.5


def most_beside(torchs: float) -> float:
    """The largest error that ours may have beside torch's."""
    return RATIO * max(LEAST_ERROR, torchs)


def assert_equal(found: Any, expected: Any) -> None:
    """Nested dictionaries and lists of tensors of the same bits, and of equal numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, each in expected.items():
            assert_equal(found[key], each)
    elif isinstance(expected, list):
        for pair in zip(found, expected, strict=True):
            assert_equal(*pair)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected
