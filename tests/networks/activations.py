"""A network of every elementwise layer that tvdnn.nn exports."""

from inspect import signature

from torch import nn

from tests.networks.case import EXACT, HALF, NetworkCase, Run
from tests.support.layers import ARGUMENTS, ELEMENTWISE
from tests.support.networks import Sum


def made(name: str) -> nn.Module:
    """torch's layer of this name, in place where torch has that."""
    layer: type[nn.Module] = getattr(nn, name)
    inplace = {"inplace": True} if "inplace" in signature(layer).parameters else {}
    return layer(*ARGUMENTS.get(name, ()), **inplace)


def every_layer() -> nn.Sequential:
    """The sum of all layers, each behind a convolution, which it may overwrite."""
    layers = [*(made(layer.__name__) for layer in ELEMENTWISE), nn.GELU("tanh"), nn.Hardtanh()]
    branches = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), layer) for layer in layers]
    joined = Sum(branches, inplace=False)
    return nn.Sequential(nn.SiLU(), nn.Conv2d(3, 4, 1), joined, nn.Flatten(), nn.Linear(64, 4))


INTERPRETED = Run("tf32", "triton", samples=2, steps=1)
NETWORKS = {
    "every layer": NetworkCase(
        every_layer, (3, 4, 4), chunk_size=300, runs=(EXACT, HALF, INTERPRETED)
    ),
}
