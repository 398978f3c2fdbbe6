"""Launches of reduce_axes.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.reduce.axes import FUNCTIONS, READS_INPUT, reduce_axes, reduce_axes_grad


def _reduced(function: str, sizes: tuple[int, ...], reduced: tuple[bool, ...]) -> None:
    options = {"dtype": torch.bfloat16, "device": "meta"}
    x = torch.empty(2, *sizes, **options)
    kept = [size for size, each in zip(sizes, reduced, strict=True) if not each]
    y = torch.empty(2, *kept, **options).flatten(1)
    settings = {"sizes": sizes, "reduced": reduced, "function": function, "precision": "tf32"}
    reduce_axes(x, y, **settings)
    reduce_axes_grad(x if function in READS_INPUT else None, y, x, **settings)


CASES = [
    *(Case(name, partial(_reduced, name, (196, 64), (True, False))) for name in FUNCTIONS),
    Case("two each", partial(_reduced, "std", (2, 3, 5, 7), (True, False, True, False))),
]
