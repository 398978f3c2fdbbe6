from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act0 = nn.Hardtanh(-0.5, 2.0)
        self.conv0 = nn.Conv2d(1, 1, (1, 1))

    def forward(self, y):
        v0 = self.act0(y)
        v2 = self.conv0(v0)
        return v0


INPUTS = {"y": (1, 1, 1, 1)}
SETTINGS = {"policy": "vdnn-conv"}
