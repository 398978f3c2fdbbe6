# a map is written over as a whole: the gradient of what it was made of is zero, not none
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gn0 = nn.GroupNorm(1, 2)

    def forward(self, x, y):
        v0 = self.gn0(x)
        v0.copy_(y)
        v5 = v0[:, 1:2]
        return v5


INPUTS = {"x": (1, 2, 1, 1), "y": (1, 2, 1, 1)}
SETTINGS = {"policy": "vdnn-conv"}
