# running statistics of a BatchNorm1d over [N, C, L] that nothing reads are not updated, in silence
# A dead call that is refused but changes state is dropped. Owner: tracing
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.bn = nn.BatchNorm1d(3)

    def forward(self, x):
        unused = self.bn(x.flatten(2))
        return self.conv(x)


def make():
    net = Net().train()
    return net


INPUTS = {"x": (4, 3, 4, 4)}
GRADS = []
SETTINGS = {"policy": "vdnn-all"}
