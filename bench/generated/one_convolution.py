"""OneConvolution: networks kept because they once failed, but for what their forward does."""

from torch import nn


class OneConvolution(nn.Module):
    """A network of one 1x1 convolution, `conv`. Subclasses say what forward does with its map."""

    channels = (4, 4)  # of the input and of the map

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*self.channels, 1)
