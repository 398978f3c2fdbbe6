# some channels of a map are read, and all of them in a view of other dimensions
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        n, c, h, w = y.shape
        groups = y.view(n, c // 2, 2, h, w)
        return y[:, :4] * 2, groups.amax(2), torch.max(y[:, :4], y[:, 4:]), groups


INPUTS = {"x": (2, 3, 6, 5)}
GRADS = ["x"]
SETTINGS = {"policy": "vdnn-all", "sections": 2}
