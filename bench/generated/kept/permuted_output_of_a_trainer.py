# a loss of an output whose dimensions are permuted
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 5, 3, padding=1)

    def forward(self, x):
        return F.relu(self.a(x)).transpose(2, 3)


INPUTS = {"x": (3, 4, 6, 5)}
SETTINGS = {
    "policy": "vdnn-all",
    "sections": 2,
    "trainer": {"loss": "nn.CrossEntropyLoss()", "optimizer": "SGD(lr=LR, momentum=0.9)"},
}
