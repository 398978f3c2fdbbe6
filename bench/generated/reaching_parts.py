"""Classes whose forward reads what lies outside their modules, or asks of maps."""

from collections.abc import Mapping
from typing import Final

REACHING: Final[Mapping[str, str]] = {
    "Reading": '''
import argparse
import random
from types import SimpleNamespace

SCALE, NOTHING, LARGE = 0.75, None, list(range(300))
TABLE = {"inner": {"scales": [0.5, 1.5]}, "sizes": (1, 2)}
CACHE = {}
OPTIONS, GIVEN = SimpleNamespace(shift=0.25), argparse.Namespace(scale=1.25)
SHUFFLE, NOISE = random.Random(3), torch.Generator().manual_seed(3)


class Settings:
    """What a configuration holds."""

    scale, names = 0.5, {"map"}

    def __init__(self):
        self.shift = 0.125


CONFIG = Settings()


def enclosed(factor, shifts):
    """A function that reads what it encloses."""

    def apply(x):
        return x * factor + shifts[0]

    return apply


class Reading(nn.Module):
    """Reads globals, attributes of classes and objects, and variables that functions enclose."""

    slope, table = 1.5, [0.5, (0.25, 2)]

    def __init__(self, how):
        super().__init__()
        self.how, self.apply_to = how, enclosed(0.5, [0.25, 1])
        self.generator = torch.Generator().manual_seed(1)

    @property
    def halved(self):
        return self.slope / 2

    def forward(self, x):
        if self.how == 0:
            return x * SCALE + TABLE["inner"]["scales"][0] * TABLE["sizes"][1]
        if self.how == 1:
            return x * OPTIONS.shift if NOTHING is None else x * GIVEN.scale * LARGE[2]
        if self.how == 2:
            return x * Settings.scale + CONFIG.shift if "map" in Settings.names else x
        if self.how == 3:
            return self.apply_to(x) * self.table[1][0]
        if self.how == 4:
            return x * self.halved
        if self.how == 5:
            if "half" not in CACHE:
                CACHE["half"] = torch.full((1,), 0.5)
            return x * float(CACHE["half"])
        return x if SHUFFLE is NOISE or self.generator is None else x * LARGE[2]
''',
    "Changing": '''
import random

import numpy

CALLS, LAST, FIRST, ABOUT = 0, (0, "none"), None, {"last": 0}
KINDS, SIZES, ORDER = {"none"}, [], [(0, 0)]
SHUFFLE, OTHERS = random.Random(3), numpy.random.default_rng(3)
NOISE, OLD = torch.Generator().manual_seed(3), numpy.random.RandomState(3)


class Counter:
    """What a forward counts."""

    calls, last = 0, None


COUNTER = Counter()


def counting():
    """Two functions that share what they enclose."""
    calls, sizes = 0, []

    def count(x):
        nonlocal calls
        calls += 1
        sizes.append(len(x))
        return x

    return count


class Changing(nn.Module):
    """Changes globals, attributes of classes, lists and generators, which are no part of it."""

    calls = 0

    def __init__(self, how):
        super().__init__()
        self.how, self.count = how, counting()
        self.noise = torch.Generator().manual_seed(1)

    def forward(self, x):
        global CALLS, LAST, FIRST, SPARE
        if self.how == 0:
            CALLS += 1
        elif self.how == 1:
            LAST = (len(x), "maps")
        elif self.how == 2:
            SPARE = len(x)
        elif self.how == 3:
            Counter.calls += 1
        elif self.how == 4:
            COUNTER.last = len(x)
        elif self.how == 5:
            type(self).calls += 1
        elif self.how == 6:
            SIZES.append(x.shape[1])
        elif self.how == 7:
            ABOUT["last"] = ABOUT["last"] + 1
        elif self.how == 8:
            KINDS.add("map")
        elif self.how == 9:
            ORDER.append((len(x), x.shape[1]))
        elif self.how == 10:
            return self.count(x) * 0.5
        elif self.how == 11:
            return x * (1.5 if SHUFFLE.random() < 2 else 1)
        elif self.how == 12:
            return x * (1.5 if float(torch.rand(1, generator=NOISE)) < 2 else 1)
        elif self.how == 13:
            return x * (1.5 if OTHERS.random() < 2 else 1)
        elif self.how == 14:
            return x * (1.5 if OLD.rand() < 2 else 1)
        else:
            torch.rand(1, generator=self.noise)
        return x * 0.5
''',
    "Inspecting": '''
import copy


class Inspecting(nn.Module):
    """Asks of a map and of a parameter what they are, by operators, methods and classes."""

    def __init__(self, how, channels):
        super().__init__()
        self.how, self.scale = how, nn.Parameter(torch.rand(channels, 1, 1) + 0.5)

    def forward(self, x):
        known = type(x) is torch.Tensor and x.__class__ is torch.Tensor and x.is_same_size(x)
        if self.how == 0:
            return x * (0.5 if x == None or x != None and x == "text" else 1.5)  # noqa: E711
        if self.how == 1:
            return x * (0.5 if known and f"{x}" and repr(x).startswith("tensor(") else 1.5)
        if self.how == 2:
            match x:
                case torch.Tensor():
                    return x * (0.5 if x.is_cpu == (not x.is_cuda) and not x.is_meta else 1.5)
            return x * 2
        if self.how == 3:
            return x * (0.5 if x.get_device() < 0 or x.is_cuda else 1.5)
        if self.how == 4:
            y = x * self.scale.to(x.dtype)
            if y.is_leaf:
                y.requires_grad = y.requires_grad
            return y * (0.5 if y._base is None and not hasattr(y, "keys") else 1.5)
        if self.how == 5:
            return x * (0.5 if x.contiguous().is_leaf and not hasattr(x, "node") else 1.5)
        if self.how == 6:
            try:
                x = copy.deepcopy(x)
            except RuntimeError:
                x = x * 0.5
            return x * 1.5
        if self.how == 7:
            try:
                x = x()
            except TypeError:
                x = x * 0.5 if not callable(x) else x
            return x * 1.5
        there = self.scale.device == x.device and self.scale.is_cuda == x.is_cuda
        return x * (0.5 if there and self.scale.get_device() == x.get_device() else 1.5)
''',
    "Applying": '''
class Halving(torch.autograd.Function):
    """Half a map, with a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        return x * 0.5

    @staticmethod
    def backward(ctx, dy):
        return dy * 0.5


class Applying(nn.Module):
    """Applies a Function with a backward of its own."""

    def forward(self, x):
        return Halving.apply(torch.cumsum(x, 1))
''',
    "Laid": '''
class Laid(nn.Module):
    """Asks for strides, or writes what is its input or, by its strides, a copy."""

    def __init__(self, asks):
        super().__init__()
        self.asks = asks

    def forward(self, x):
        if self.asks:
            return x * (0.5 if x.is_contiguous() else 1.5)
        x = x * 1.5
        y = x.flatten(2)
        y *= 2
        return x + 1
''',
    "Puzzling": '''
import copy


class Puzzling(nn.Module):
    """Asks of maps and parameters what is not known before a step, or cuts a map off."""

    def __init__(self, how, channels):
        super().__init__()
        self.how, self.scale = how, nn.Parameter(torch.rand(channels, 1, 1) + 0.5)

    def forward(self, x):
        y = x * self.scale
        if self.how == 0:
            return copy.copy(y) * 0.5
        if self.how == 1:
            made = y.grad_fn
            return y * (0.5 if made is None or made.name() == made.name() else 1.5)
        if self.how == 2:
            return y * (1.5 if y[:, :1]._base is y else 0.5)
        if self.how == 3:
            return y * float(f"{y.mean().abs() + 1:.3f}")
        if self.how == 4:
            return y * (y == 0.5).to(y.dtype) + y * (y != 0.5).to(y.dtype)
        if self.how == 5:
            made = torch.zeros(self.scale.shape)
            made.copy_(self.scale.detach())
            return y * made
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            return y * 0.5
''',
    "Typed": '''
import math


class Typed(nn.Module):
    """Names `type` in its forward, as a class, a base, a key and a hint."""

    def forward(self, x):
        class Meta(type):
            pass

        names = {type: "class", int: "number"}
        hint, other = type[int] or None, (type | None) == (None | type)
        found = isinstance(Meta, type) and issubclass(Meta, type) and type == type(int)
        factor = 0.5 if found and hint is not None and names[type] == "class" else 1.5
        return x * (factor if type.__name__ == "type" and other and math.pi > 3 else 2)
''',
}
