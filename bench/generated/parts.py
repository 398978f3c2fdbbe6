"""Classes that printed networks may hold: each is printed where a network names it."""

import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

import tvdnn
from bench.generated.own_parts import OWN_PARTS
from bench.generated.reaching_parts import REACHING
from bench.generated.returned_parts import RETURNED

PARTS: Final[Mapping[str, str]] = {
    **OWN_PARTS,
    "Pair": """
from collections import namedtuple

Pair = namedtuple("Pair", "first second")
""",
    "Running": '''
class Running(nn.Module):
    """Sums along channels, which tvdnn has no op for, and parameters, one of which is frozen."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))
        self.shift = nn.Parameter(torch.randn(channels), requires_grad=False)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        y = torch.cumsum(torch.tanh(self.mix(x)), 1) / x.shape[1]
        return y * self.scale.view(-1, 1, 1) + self.shift.view(-1, 1, 1)
''',
    "Turning": '''
class Turning(nn.Module):
    """Sums along columns, on maps [N, H, W, C], with a layer of its own inside."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Softshrink(0.1), nn.Identity())

    def forward(self, x):
        return self.inner(torch.cumsum(x.permute(0, 2, 3, 1), 2).permute(0, 3, 1, 2) * 0.5)
''',
    "Flat": '''
class Flat(nn.Module):
    """Rows of a map, [N, C, L], by sums that tvdnn has not."""

    def forward(self, x):
        return torch.cumsum(x.flatten(2), 2) * 0.5
''',
    "Regional": '''
class Regional(nn.Module):
    """Sums along channels in a region of torch's own mixed precision, here in full."""

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=False):
            return torch.cumsum(x * 0.5, 1)
''',
    "Counting": '''
class Counting(nn.Module):
    """Counts its calls in a buffer, and holds a call that tvdnn has not."""

    def __init__(self):
        super().__init__()
        self.count = nn.Buffer(torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return torch.cumsum(x, 1)
''',
    "Averaging": '''
class Averaging(nn.Module):
    """Normalizes batches by tvdnn's layer, and holds a call that tvdnn has not."""

    def __init__(self, channels):
        super().__init__()
        self.norm = tvdnn.nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.cumsum(self.norm(x), 1)
''',
    "Noisy": '''
class Noisy(nn.Module):
    """Adds random numbers."""

    def forward(self, x):
        return torch.cumsum(x, 1) + torch.randn_like(x)
''',
    "OfTwo": '''
class OfTwo(nn.Module):
    """Reads two maps, by a call that tvdnn has not, and makes two."""

    def forward(self, x, y):
        return torch.cumsum(x + 2 * y, 1), x
''',
    "Several": '''
class Several(nn.Module):
    """Makes two maps, by a call that tvdnn has not."""

    def forward(self, x):
        return torch.cumsum(x, 1), x
''',
    "OverBatch": '''
class OverBatch(nn.Module):
    """Makes what has no batch, by a call that tvdnn has not."""

    def forward(self, x):
        return torch.cumsum(x, 1).flatten(0, 1)
''',
    "Doubling": '''
class Doubling(torch.autograd.Function):
    """Twice a map, with a backward of its own."""

    @staticmethod
    def forward(ctx, x, factor):
        return x * factor

    @staticmethod
    def backward(ctx, dy):
        return dy * 2, None
''',
    "Checkpointed": '''
class Checkpointed(nn.Module):
    """Layers that torch runs again in backward."""

    def __init__(self, channels, reentrant):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x):
        checkpoint = torch.utils.checkpoint.checkpoint
        return checkpoint(self.layers, x, use_reentrant=self.reentrant)
''',
    "Asking": '''
class Asking(nn.Module):
    """Asks of a map what is known of it before a step, and goes by the answers."""

    def __init__(self):
        super().__init__()
        self.kinds, self.deep = {"map", "row"}, [[[[["of lists"]]]]]

    def forward(self, x):
        if not isinstance(x, torch.Tensor) or isinstance(x, (list, dict)):
            raise TypeError("no tensor")
        if not torch.is_tensor(x) or not x.is_floating_point() or x.is_cuda and x.numel() < 1:
            return x
        if x.ndim == 4 and x.dim() == 4 and x.size(1) == x.shape[1] and len(x):
            x = x * (0.5 if x.is_leaf else 1.5) * (1 if x.dtype.is_floating_point else 2)
        if x.is_contiguous() and x.stride(0) > 0 and torch.numel(x) and torch.is_floating_point(x):
            x = x + 0.25
        half = torch.zeros(1).add_(0.5)
        x = x * float(half)
        if x.requires_grad and x.grad_fn is not None and x.grad is None:
            return x * 1.5 if x.device.type != "nowhere" else x
        return x
''',
    "DropPath": '''
class DropPath(nn.Module):
    """Stands for timm's layer of this name."""

    def __init__(self, drop_prob=0.0, scale_by_keep=True):
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, scale_by_keep

    def forward(self, x):
        return x if self.drop_prob == 0.0 or not self.training else x * 0


DropPath.__module__ = "timm.layers.drop"
''',
    "Autocast": '''
class Autocast(nn.Module):
    """A region of torch's own mixed precision."""

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=False):
            return x * 2
''',
    "Keeping": '''
class Keeping(nn.Module):
    """Leaves on itself what it has seen: a map, a number, a list."""

    def __init__(self, what):
        super().__init__()
        self.what, self.seen, self.names = what, [], {"calls": 0}

    def forward(self, x):
        y = x * 2
        if self.what == "map":
            self.last = y
        elif self.what == "list":
            self.seen.append(len(y))
        elif self.what == "number":
            self.names["calls"] += 1
        else:
            self.calls = getattr(self, "calls", 0) + 1
        return y
''',
    "Hooked": '''
class Hooked(nn.Module):
    """Asks for a map's gradient besides."""

    def __init__(self, retains):
        super().__init__()
        self.scale, self.retains = nn.Parameter(torch.ones(1)), retains

    def forward(self, x):
        y = x * self.scale
        if y.requires_grad and self.retains:
            y.retain_grad()
        elif y.requires_grad:
            y.register_hook(lambda grad: grad)
        return y
''',
    "Writing": '''
class Writing(nn.Module):
    """Writes parts of a map over, by items of it."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        y = x * 1.5
        if self.how == 0:
            y[:, :1] = x[:, :1] * 0.5
        elif self.how == 1:
            y[:, 0] += x[:, -1]
        elif self.how == 2:
            y[..., 1:] *= 0.5
        elif self.how == 3:
            y[:, :, ::2] = 0.25
        elif self.how == 4:
            y[:, :, 0] = x[:, :, -1].tanh()
        elif self.how == 5:
            y[:] = x.tanh()
        elif self.how == 6:
            y[:, 1:, :1] = x[:, 1:, :1] * 0.5
        else:
            y[x > 0] = 0.5
        return y * 2
''',
    **REACHING,
    **RETURNED,
}
NAMES: Final = re.compile(rf"\b({'|'.join(PARTS)})\b")


def parts_in(texts: str) -> list[str]:
    """The sources of the parts that a text names, in their order."""
    named = set(NAMES.findall(texts))
    return [source for name, source in PARTS.items() if name in named]


def _made() -> dict[str, Any]:
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": functional, "tvdnn": tvdnn}
    names["__name__"] = "generated"
    for name, source in PARTS.items():
        exec(compile(source, f"<{name}>", "exec"), names)
    return names


SCOPE: Final[Mapping[str, Any]] = _made()  # what statements of printed networks may name
