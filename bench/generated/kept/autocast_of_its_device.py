# a region of torch.autocast on the device that a map names: refused
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        v0 = self.a(x)
        region = torch.autocast(v0.device.type, dtype=torch.bfloat16, enabled=False)
        region.__enter__()
        v1 = v0 * 2
        region.__exit__(None, None, None)
        return v1


def make():
    net = Net().train()
    return net


INPUTS = {"x": (3, 4, 6, 6)}
GRADS = []
SETTINGS = {"policy": "vdnn-all", "sections": 2}
