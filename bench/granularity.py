"""A patch for tests: launches may be cut at any sample, as launches on large maps may be."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from tvdnn.kernels.conv.grad_bias import GradBiasPlan, grad_bias_plan
from tvdnn.kernels.conv.grad_weight.launch import GradWeightPlan
from tvdnn.ops import conv


@contextmanager
def units_of_one() -> Iterator[None]:
    """Make parameter gradients of two sums, whose launches may start at any sample.

    Without the patch a launch on small maps takes a whole batch, and there are dozens of sums.
    """
    plan = GradWeightPlan(splits=2, unit=1)

    def bias_plan(sides: tuple[int, int], channels: int) -> GradBiasPlan:
        return replace(grad_bias_plan(sides, channels), splits=2, unit=1)

    weights = patch.object(conv, "grad_weight_plan", lambda *_, **__: plan)
    with weights, patch.object(conv, "grad_bias_plan", bias_plan):
        yield
