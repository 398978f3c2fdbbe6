"""The variants of a weight gradient that are measured compute one gradient."""

import torch

from bench.cases.conv.layers import NETWORKS, Layer, Tensors
from bench.cases.operands import Operands
from bench.grad_weight_ranges import LAYERS, plan_of, sums_of, variant
from tvdnn.kernels.conv.grad_weight.running_sums import GradWeightPlan


def test_all_layers_are_known() -> None:
    for network, names in LAYERS.items():
        assert set(names) <= {layer.name for layer in NETWORKS[network]}


def test_variants_have_from_all_sums_to_the_least() -> None:
    assert sums_of(GradWeightPlan(29, 1)) == [29, 14, 7, 3, 1]
    assert sums_of(GradWeightPlan(8, 1, 2)) == [8, 4, 2]


def test_variants_have_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = Tensors(
        Operands(torch.device("cpu"), generator), 4, Layer(6, 32, 32), torch.bfloat16, "tf32"
    )
    plan = plan_of(tensors)
    assert plan.splits > 1
    whole, *others = (variant(tensors, plan, sums)() for sums in sums_of(plan))
    assert others
    assert whole.abs().sum() > 0
    assert all(torch.equal(whole, other) for other in others)
