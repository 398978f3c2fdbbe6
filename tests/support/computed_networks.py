"""Networks whose forward computes weights of parameters and buffers."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from tests.support.running import Batch, random_batches

BATCH, SHAPE, CLASSES = 4, (4, 6, 8), 4


class StdConv2d(nn.Conv2d):
    """Filters normalized as the channels of a batch are, with a gain where it is asked for."""

    def __init__(self, *args: Any, gain: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5) if gain else None
        self.scale = 1.7

    def forward(self, x: Tensor) -> Tensor:
        gain = None if self.gain is None else (self.gain * self.scale).view(-1)
        flat = self.weight.reshape(1, self.out_channels, -1)
        w = functional.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0)
        settings = (self.stride, self.padding, self.dilation, self.groups)
        return functional.conv2d(x, w.reshape_as(self.weight), self.bias, *settings)


class WrittenOut(nn.Conv2d):
    """The usual forms by hand: of the mean and deviation, or of both at once."""

    def __init__(self, *args: Any, at_once: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at_once = at_once

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        if self.at_once:
            var, mean = torch.var_mean(w, dim=[1, 2, 3], keepdim=True, unbiased=False)
            w = (w - mean) / torch.sqrt(var + 1e-5)
        else:
            w = w - w.mean((1, 2, 3), keepdim=True)
            w = w / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return functional.conv2d(x, w, self.bias, self.stride, self.padding, groups=self.groups)


class Behind(nn.Module):
    """Layers between a convolution and a linear layer that train as they are."""

    def __init__(self, *layers: nn.Module, channels: int = 4) -> None:
        super().__init__()
        self.first, self.layers = nn.Conv2d(4, 4, 1), nn.Sequential(*layers)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(functional.relu(self.first(x)))
        return self.head(x.flatten(2).mean(2))


def standardized() -> nn.Module:
    return Behind(
        StdConv2d(4, 6, 3, padding=1),
        StdConv2d(6, 6, 3, padding=1, groups=6, bias=False),
        StdConv2d(6, 4, 3, stride=2, groups=2, gain=True),
    )


def written_out() -> nn.Module:
    return Behind(
        WrittenOut(4, 4, 3, padding=1, at_once=False),
        WrittenOut(4, 4, 3, padding=1, groups=4, at_once=True),
    )


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return (weight + weight.flip(3)) / 2


class Scaled(nn.Module):
    """A parametrization with a parameter of its own."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(outputs, 1, 1, 1) + 0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale.exp()


def parametrized() -> nn.Module:
    conv = parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))
    twice = nn.Conv2d(4, 6, 3, padding=1, groups=2)
    parametrize.register_parametrization(twice, "weight", Symmetric())
    parametrize.register_parametrization(twice, "weight", Scaled(6))
    turned = parametrizations.weight_norm(nn.ConvTranspose2d(6, 4, 3), dim=1)
    net = Behind(conv, nn.ReLU(), twice, turned)
    net.head = parametrizations.orthogonal(net.head)
    return net


def normed_before_each_call() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conv = nn.utils.weight_norm(nn.Conv2d(4, 4, 3, groups=4))
    conv.weight = conv.weight.detach()  # deepcopy takes no other
    return Behind(conv)


class Masked(nn.Module):
    """Weights and biases times masks, numbers and parameters; filters expanded from one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 6, 3, padding=1), nn.Linear(6, CLASSES)
        self.register_buffer("mask", (torch.rand(6, 4, 3, 3) > 0.4).float())
        self.register_buffer("kept", torch.tensor([True, False, True, True, False, True]))
        self.register_buffer("filter", torch.rand(1, 1, 3, 3))
        self.one = nn.Parameter(torch.rand(1, 1, 2, 2))
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.where(self.kept, self.conv.bias, torch.zeros_like(self.conv.bias))
        x = functional.conv2d(x, self.conv.weight * self.mask, bias, padding=1)
        x = functional.conv2d(x, self.filter.expand(6, 1, 3, 3), stride=2, padding=1, groups=6)
        x = functional.conv2d(x, self.one.expand(6, -1, -1, -1), groups=6)
        x = x.mean((2, 3))
        return functional.linear(x, self.head.weight * self.scale, self.head.bias * 2)


class Normalized(nn.Module):
    """Normalizations, slopes and products with maps, whose parameters are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 4, 1), nn.Linear(4, CLASSES)
        self.gamma, self.beta = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4))
        self.rows = nn.Parameter(torch.rand(6, 1))
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        gamma, state = 1 + self.gamma, (self.running_mean, self.running_var)
        x = functional.batch_norm(self.conv(x), *state, gamma, -self.beta, training=True)
        x = functional.group_norm(x, 2, gamma * 2, self.beta.exp())
        x = functional.prelu(x, self.beta.sigmoid())
        x = x * self.gamma.exp().view(1, -1, 1, 1) + self.rows.softmax(0)
        x = functional.layer_norm(x.mean((2, 3)), (4,), gamma, None)
        return functional.linear(x, self.head.weight.t(), self.head.bias)


class Sign(torch.autograd.Function):
    """One bit of each weight, whose gradient is the weight's."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.sign() * weight.abs().mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 0.5


class Odd(nn.Module):
    """Filters made in place, by parts, without gradients, by a function of its own, of a code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lines = nn.Conv2d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1)
        self.one = nn.Parameter(torch.rand(1, 1, 1, 1))
        self.code, self.made = nn.Parameter(torch.rand(1, 3)), nn.Linear(3, 4 * 4 * 2)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = functional.conv2d(x, self.one.expand(4, -1, -1, -1), groups=4)
        w = self.conv.weight.clone()
        w[:, 1] = 0
        w[0].mul_(2)
        x = functional.conv2d(x, w, self.conv.bias, padding=1)
        x = functional.conv2d(x, Sign.apply(self.conv.weight), padding=1)
        with torch.no_grad():
            scale = self.conv.weight.abs().amax((1, 2, 3), keepdim=True)
        first, second = (self.conv.weight / scale).split(2, 0)
        x = functional.conv2d(x, torch.cat([second, first.detach()]), padding=1)
        x = functional.conv2d(x, self.made(self.code).view(4, 4, 1, 2))
        x = functional.conv1d(x.flatten(2), self.lines.weight.flip(2), self.lines.bias, padding=1)
        return self.head(x.mean(2))


class Shared(nn.Module):
    """A weight that is read as it is, and computed in two ways by layers that share a result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, CLASSES)
        self.std = StdConv2d(4, 4, 3, padding=1, gain=True)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.conv.weight.transpose(2, 3).flip(0) - self.conv.weight.mean()
        x = self.conv(x) + functional.conv2d(x, turned, padding=1)
        x = functional.relu(functional.conv2d(x, turned, self.conv.bias / 2, padding=1))
        x = self.std(self.std(x))
        x = functional.conv2d(x, self.std.weight, padding=1)
        return self.head(x.mean((2, 3)))


def frozen() -> nn.Module:
    """Filters that do not train, among them some whose gain does."""
    net = Behind(StdConv2d(4, 4, 3), StdConv2d(4, 4, 3, gain=True))
    net.layers[0].requires_grad_(False)
    net.layers[1].weight.requires_grad_(False)
    return net


NETWORKS: list[Callable[[], nn.Module]] = [
    *(standardized, written_out, parametrized, normed_before_each_call),
    *(Masked, Normalized, Odd, Shared, frozen),
]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make()


def batch_of(seed: int = 2) -> Batch:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=seed)
    return batch
