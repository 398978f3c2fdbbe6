"""Accuracy on a GPU: gradients of VGG-16 against float64, beside torch eager in the same type.

float32 and tf32 are not held to it yet: most gradients had 0.6 of eager's error, but single ones
up to 3.2 times (features.28.bias and classifier.0.bias; batch 8, one seed, H200, 2026-11-21), which
signs of ReLU that flip near zero may explain; pooling over seeds would tell.
"""

import copy
import gc

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tvdnn

pytestmark = pytest.mark.gpu

BATCH = 8
MOST = 1.25  # of torch eager's error, by relative RMS per gradient


def gradients(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    net.zero_grad(set_to_none=True)
    functional.cross_entropy(net(x).to(x.dtype), y).backward()
    return {name: param.grad.detach().double() for name, param in net.named_parameters()}


def torch_layers(net: nn.Module) -> nn.Module:
    """A copy with every tvdnn layer as its torch namesake."""
    twin = copy.deepcopy(net)
    for module in twin.modules():
        if type(module).__module__.startswith("tvdnn.nn"):
            module.__class__ = type(module).__mro__[1]
    return twin


def errors(got: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    return {
        name: float(
            ((got[name] - exact[name]).square().mean() / exact[name].square().mean()).sqrt()
        )
        for name in exact
    }


def test_bf16_gradients_are_as_accurate_as_torch_eager() -> None:
    torch.manual_seed(0)
    net = tvdnn.models.vgg16(num_classes=100).cuda().eval()  # no dropout
    with torch.no_grad():
        for param in net.parameters():
            param.copy_(param.bfloat16())  # the same weights in both types
    x = torch.randn(BATCH, 3, 224, 224, device="cuda").bfloat16().float()
    y = torch.randint(0, 100, (BATCH,), device="cuda")

    plain = torch_layers(net)
    exact = gradients(copy.deepcopy(plain).double(), x.double(), y)
    eager = copy.deepcopy(plain).bfloat16().to(memory_format=torch.channels_last)
    theirs = errors(gradients(eager, x.bfloat16(), y), exact)
    del eager
    gc.collect()
    virtual = tvdnn.virtualize(net, x, dtype="bf16", policy="vdnn-all")
    ours = errors(gradients(virtual, x, y), exact)
    ratios = {name: ours[name] / theirs[name] for name in exact}
    assert max(ratios.values()) <= MOST, {name: r for name, r in ratios.items() if r > MOST}
