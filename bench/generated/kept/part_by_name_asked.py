# the sizes of a part of a result by its name, which the network and a lazy layer ask for
import torch

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lazy0 = nn.LazyConvTranspose2d(2, 1)

    def forward(self, x):
        v0 = torch.max(x, dim=1, keepdim=True).values
        v1 = self.lazy0(v0)
        v2 = x.min(2).values
        return v1.reshape(v2.shape[0], -1) * v2.size(1)


def make():
    net = Net().train()
    return net


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "tvdnn-heuristic"}
