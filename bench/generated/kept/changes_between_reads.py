# a buffer that maps read before and after forward changes it
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)
        self.scale = nn.Buffer(torch.full((1,), 0.5))
        self.ema = nn.Buffer(torch.zeros(4))

    def forward(self, x):
        self.a.weight.data.clamp_(-0.2, 0.2)
        x0 = self.a(x + self.scale)
        self.scale.mul_(0.9).add_(1)
        self.ema.lerp_(self.a.bias.detach(), 0.1)
        self.ema[0] = 2
        return x0 * self.scale + self.ema.view(1, 4, 1, 1)


INPUTS = {"x": (3, 4, 6, 6)}
GRADS = ["x"]
SETTINGS = {"policy": "auto", "sections": 2, "budget": 0.0, "evaluates": True}
