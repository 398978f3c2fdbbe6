# the checker refuses: "loss pixels reads cat, which holds none of what loss reads"
# cat([v, w]) where w is a view of v that was changed in place: both are one value
import torch

from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    channels = (1, 1)

    def forward(self, x):
        v21 = self.conv(x)
        v22 = v21.flatten(1)
        v21.mul_(0.5)
        v23 = v22.view(4, 1, 7, 7)
        v24 = torch.cat([v21, v23], 1)
        return v24


INPUTS = {"x": (4, 1, 7, 7)}
SETTINGS = {
    "policy": "vdnn-all",
    "trainer": {"loss": "nn.CrossEntropyLoss()", "optimizer": "SGD(lr=LR, momentum=0.9)"},
}
