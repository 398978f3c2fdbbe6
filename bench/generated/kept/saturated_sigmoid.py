# in tf32 the sigmoid was stored as 1 for the convolution, and its gradient read that
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(1, 1, 1)
        self.conv1 = nn.Conv2d(1, 1, 1)

    def forward(self, y):
        v0 = torch.norm(self.conv0(y), p=2, dim=(2, 3), keepdim=True)
        return self.conv1(torch.sigmoid(v0))


INPUTS = {"y": (2, 1, 10, 10)}
SETTINGS = {"policy": "vdnn-all"}
