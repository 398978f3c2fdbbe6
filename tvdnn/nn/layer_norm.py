"""Layer normalization over the kernels."""

import torch
from torch import Tensor

from ..errors import InputError
from .eager import checked, run, torchs_own
from .layouts import AS_IS, Rows


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return super().forward(input)
        dims = len(self.normalized_shape)
        if input.shape[input.dim() - dims :] != torch.Size(self.normalized_shape):
            wanted = f"normalized_shape is {tuple(self.normalized_shape)}"
            raise InputError(f"the input has shape {tuple(input.shape)}; {wanted}")
        params = (None if each is None else each.flatten() for each in (self.weight, self.bias))
        layout = AS_IS if dims == 1 < input.dim() else Rows(dims)
        attrs = {"eps": float(self.eps)}
        return run("layer_norm", checked(input), *params, attrs=attrs, layout=layout)
