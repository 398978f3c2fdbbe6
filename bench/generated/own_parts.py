"""Classes of printed networks that compute with tensors of their own, and what they import."""

from collections.abc import Mapping
from typing import Final

OWN_PARTS: Final[Mapping[str, str]] = {
    "np": """
import numpy as np
""",
    "Tuned": '''
class Tuned(nn.Module):
    """Moves a buffer by the gradient of a parameter, which forward computes itself."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.speed = nn.Buffer(torch.zeros(1))

    def forward(self, x):
        with torch.enable_grad():
            (slope,) = torch.autograd.grad((self.scale**2).sum(), [self.scale])
        self.speed.copy_(slope)
        return x * self.scale
''',
}
