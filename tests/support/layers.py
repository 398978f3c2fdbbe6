"""Layers of tvdnn.nn by name, with the shape of an input, and their twins of torch in float64."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor

from tvdnn import nn
from tvdnn.nn.activation import Elementwise

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}


def shifted(layer: torch.nn.Module) -> torch.nn.Module:
    """The layer with parameters that are neither ones nor zeros."""
    for param in layer.parameters():
        torch.nn.init.normal_(param, 0.5)
    return layer


EXPORTED: Final = [getattr(nn, name) for name in nn.__all__]
ELEMENTWISE: Final = [layer for layer in EXPORTED if issubclass(layer, Elementwise)]
# Of elementwise layers, by name, arguments other than the defaults.
ARGUMENTS: Final[Mapping[str, tuple[float, ...]]] = {
    "CELU": (0.7,),
    "ELU": (0.7,),
    "Hardtanh": (-0.5, 0.7),
    "LeakyReLU": (0.2,),
    "Softplus": (2, 1),
    "Threshold": (0.1, -0.3),
}

LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    **{
        layer.__name__.lower(): (partial(layer, *ARGUMENTS.get(layer.__name__, ())), (2, 5, 3, 7))
        for layer in ELEMENTWISE
    },
    "conv": (lambda: nn.Conv2d(3, 8, 3, padding=1), (2, 3, 9, 7)),
    "conv one channel": (lambda: nn.Conv2d(1, 5, 5), (3, 1, 11, 8)),
    "conv strided": (lambda: nn.Conv2d(4, 6, (5, 3), stride=(3, 2), padding=(2, 0)), (2, 4, 13, 8)),
    "conv dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=(2, 3), bias=False), (1, 4, 9, 12)),
    "conv grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 6, 6)),
    "conv depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, stride=2), (2, 4, 7, 7)),
    "conv depthwise, eights": (
        lambda: nn.Conv2d(16, 16, (7, 5), stride=(2, 1), padding=3, groups=16),
        (2, 16, 7, 6),
    ),
    "conv same": (lambda: nn.Conv2d(3, 4, 3, padding="same", dilation=2), (2, 3, 7, 6)),
    "conv same, uneven": (lambda: nn.Conv2d(3, 4, (2, 4), padding="same"), (2, 3, 7, 6)),
    "conv valid": (lambda: nn.Conv2d(3, 4, 2, padding="valid"), (2, 3, 7, 6)),
    "conv reflect": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 7, 6)),
    "conv transposed": (lambda: nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 7)),
    "conv transposed, strided": (
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=2, padding=(1, 0), output_padding=(1, 0)),
        (2, 4, 5, 7),
    ),
    "conv transposed, grouped": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=3, groups=2, dilation=2, bias=False),
        (2, 4, 5, 3),
    ),
    "relu of features": (nn.ReLU, (3, 11)),
    "leaky relu, falling": (lambda: nn.LeakyReLU(-0.2), (2, 5, 3, 7)),
    "gelu by tanh": (lambda: nn.GELU("tanh"), (3, 11)),
    "prelu": (nn.PReLU, (2, 5, 3, 7)),
    "prelu by channel": (lambda: shifted(nn.PReLU(5)), (2, 5, 3, 7)),
    "prelu of features": (lambda: nn.PReLU(11, init=-0.3), (3, 11)),
    "softsign of features": (nn.Softsign, (3, 11)),
    "glu": (lambda: nn.GLU(1), (2, 6, 3, 7)),
    "max pool": (lambda: nn.MaxPool2d(2), (2, 5, 7, 8)),
    "max pool overlapping": (lambda: nn.MaxPool2d(3, stride=2, padding=1), (2, 5, 7, 8)),
    "max pool ceil": (lambda: nn.MaxPool2d((2, 3), 2, ceil_mode=True, dilation=2), (2, 5, 8, 9)),
    "avg pool": (lambda: nn.AvgPool2d(2), (2, 5, 7, 8)),
    "avg pool padded": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), (2, 5, 7, 8)),
    "avg pool inside": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 5, 7, 8)),
    "avg pool divisor": (lambda: nn.AvgPool2d((2, 3), divisor_override=5), (2, 5, 7, 8)),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d((3, 2)), (2, 5, 7, 8)),
    "adaptive pool, one side": (lambda: nn.AdaptiveAvgPool2d((None, 1)), (2, 5, 7, 8)),
    "linear": (lambda: nn.Linear(7, 5), (3, 7)),
    "linear of a sequence": (lambda: nn.Linear(7, 5, bias=False), (2, 3, 7)),
    "response norm": (lambda: nn.LocalResponseNorm(5, alpha=0.5, beta=0.75, k=2.0), (2, 9, 3, 4)),
    "response norm, even": (lambda: nn.LocalResponseNorm(2, alpha=0.5), (2, 3, 3, 4)),
    "group norm": (lambda: shifted(nn.GroupNorm(3, 6)), (2, 6, 3, 7)),
    "group norm of features": (lambda: shifted(nn.GroupNorm(3, 12, eps=1e-3)), (3, 12)),
    "group norm alone": (lambda: nn.GroupNorm(1, 5, affine=False), (2, 5, 3, 7)),
    "instance norm": (lambda: shifted(nn.InstanceNorm2d(5, affine=True)), (2, 5, 3, 7)),
    "instance norm of rows": (lambda: nn.InstanceNorm1d(5), (2, 5, 7)),
    "layer norm": (lambda: shifted(nn.LayerNorm(7)), (2, 5, 3, 7)),
    "layer norm of features": (lambda: shifted(nn.LayerNorm(11, bias=False)), (3, 11)),
    "layer norm of samples": (lambda: shifted(nn.LayerNorm((5, 3, 7), eps=1e-3)), (2, 5, 3, 7)),
    "layer norm alone": (lambda: nn.LayerNorm((3, 7), elementwise_affine=False), (2, 5, 3, 7)),
    "batch norm": (lambda: nn.BatchNorm2d(9), (2, 9, 3, 4)),
    "batch norm, as it was": (lambda: nn.BatchNorm2d(9).eval(), (2, 9, 3, 4)),
    "batch norm, cumulative": (lambda: nn.BatchNorm2d(9, momentum=None), (2, 9, 3, 4)),
    "batch norm, bare": (
        lambda: nn.BatchNorm2d(9, affine=False, track_running_stats=False).eval(),
        (2, 9, 3, 4),
    ),
    "batch norm of features": (lambda: nn.BatchNorm1d(7), (5, 7)),
    "batch norm of sequences": (lambda: nn.BatchNorm1d(7, eps=0.1), (5, 7, 3)),
    "channel shuffle": (lambda: nn.ChannelShuffle(3), (2, 12, 3, 7)),
    "softmax": (lambda: nn.Softmax(1), (3, 11)),
    "softmax of pixels": (lambda: nn.Softmax(-3), (2, 5, 3, 7)),
    "log softmax": (lambda: nn.LogSoftmax(1), (2, 5, 3, 7)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), (2, 5, 3, 7)),
    "upsample bilinear": (lambda: nn.Upsample((7, 9), mode="bilinear"), (2, 5, 3, 7)),
    "upsample corners": (
        lambda: nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True),
        (2, 5, 4, 7),
    ),
    "flatten": (nn.Flatten, (2, 3, 4, 5)),
}


def error(ours: Tensor, exact: Tensor) -> float:
    """RMS of the difference in units of the exact tensor's RMS."""
    assert ours.shape == exact.shape
    ours, exact = ours.detach().double().cpu(), exact.detach().double().cpu()
    return float(((ours - exact).square().mean() / exact.square().mean()).sqrt())


def twin_of(layer: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """torch's layer in float64 with the weights as `dtype` sees them."""
    twin = copy.deepcopy(layer)
    if type(layer).__module__.startswith("tvdnn"):
        twin.__class__ = getattr(torch.nn, type(layer).__name__)
    with torch.no_grad():
        for name, param in twin.named_parameters():
            param.data = (param.to(dtype) if name == "weight" else param).double()
        for buffer in twin.buffers():
            buffer.data = buffer.double() if buffer.is_floating_point() else buffer
    return twin
