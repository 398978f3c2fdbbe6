# the loss of one class is zero, but for what rounds inside
import torch
from torch import nn
from torch.nn import functional as F

import tvdnn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = tvdnn.nn.Conv2d(3, 3, 1)
        self.bn0 = tvdnn.nn.BatchNorm2d(3, eps=0.001)
        self.conv1 = tvdnn.nn.Conv2d(3, 3, 1)
        self.conv2 = tvdnn.nn.Conv2d(3, 3, 1)
        self.bn4 = tvdnn.nn.BatchNorm2d(1, momentum=0.3)

    def forward(self, x):
        v0 = self.conv0(x)
        v1 = v0
        v0 -= x
        v2 = torch.cat([v0, v1], 1)
        v3 = self.bn0(v1)
        v4 = v3 + v1
        v7 = v3.var((1, 3), keepdim=True, unbiased=False)
        v8 = self.conv1(x)
        v9 = self.conv2(x)
        v24 = self.bn4(v7)
        v27 = F.relu(v7)
        v28 = v24 + v27
        v30 = v28.mean(2, keepdim=True)
        v31 = v30 - v28
        return v31


INPUTS = {"x": (4, 3, 8, 8)}
GRADS = ["x"]
SETTINGS = {
    "policy": "vdnn-all",
    "sections": 3,
    "trainer": {
        "loss": "nn.CrossEntropyLoss(label_smoothing=0.1)",
        "optimizer": "AdamW(lr=0.002, betas=(0.8, 0.95), eps=0.001, weight_decay=0.3)",
        "accumulate": 2,
    },
}
