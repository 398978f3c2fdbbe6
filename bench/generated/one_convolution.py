"""OneConvolution: the convolution of many networks that are kept because they once failed."""

from torch import nn


class OneConvolution(nn.Module):
    """A network of one 1x1 convolution, `conv`. Subclasses add other layers and forward."""

    channels = (4, 4)  # of the input and of the map

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*self.channels, 1)
