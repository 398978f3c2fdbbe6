# a loss of an output that is stored in torch's order
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(6)

    def forward(self, x):
        v0 = self.bn(x[:, :, ::2, ::2])
        v1 = v0.roll(1, 1)
        return v1.reshape(5, 6, 5, 2)


INPUTS = {"x": (5, 6, 4, 9)}
SETTINGS = {
    "policy": "vdnn-all",
    "sections": 2,
    "trainer": {"loss": "nn.MSELoss(reduction='sum')", "optimizer": "SGD(lr=LR, momentum=0.9)"},
}
