# a dropout in evaluation gives back the input, which is a leaf
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part0 = Asking()

    def forward(self, x):
        v0 = F.dropout2d(x, p=0.5, training=False)
        v2 = self.part0(v0)
        return v2


def make():
    net = Net().train()
    return net


INPUTS = {"x": (1, 1, 1, 1)}
GRADS = ['x']
SETTINGS = {'policy': 'vdnn-conv'}
