# a lazy normalization, while terms are measured
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lazy0 = nn.LazyBatchNorm1d()
        self.gn0 = nn.GroupNorm(1, 1)

    def forward(self, y):
        v1 = self.lazy0(input=y)
        v3 = self.gn0(v1)
        return v3


INPUTS = {"y": (2, 1)}
SETTINGS = {"policy": "vdnn-all"}
