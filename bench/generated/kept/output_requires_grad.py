# an output that depends on no parameter and no input that requires gradients is marked as requiring gradients; torch's does not
from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    channels = (1, 1)

    def forward(self, x):
        v3 = self.conv(x)
        return (
            x,
            v3,
        )


INPUTS = {"x": (1, 1, 1, 1)}
SETTINGS = {"policy": "vdnn-all"}
