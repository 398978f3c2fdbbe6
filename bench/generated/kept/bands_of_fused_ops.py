# a network that one policy fuses and another does not is cut into the same bands
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage0 = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, y):
        v2 = self.stage0(y)
        return v2


INPUTS = {"y": (1, 1, 16, 16)}
SETTINGS = {"policy": "vdnn-all", "chunk_size": 1024}
