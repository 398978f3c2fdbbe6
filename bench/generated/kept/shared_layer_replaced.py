# a layer is replaced that another name has, too
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(2, 2, 1)
        self.act0 = nn.ReLU()
        self.act1 = self.act0

    def forward(self, x):
        return self.act1(self.conv0(self.act0(x)))


INPUTS = {"x": (1, 2, 3, 3)}
SETTINGS = {"policy": "vdnn-all", "between": "net.act0 = nn.SiLU()", "evaluates": True}
