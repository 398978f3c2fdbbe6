# accumulate decays parameters that no output depends on
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)
        self.unused = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        u = self.unused(x)
        return self.a(x)


INPUTS = {"x": (4, 4, 6, 6)}
SETTINGS = {
    "policy": "vdnn-all",
    "sections": 2,
    "trainer": {
        "loss": "nn.MSELoss()",
        "optimizer": "SGD(lr=LR, weight_decay=0.1)",
        "accumulate": 2,
    },
}
