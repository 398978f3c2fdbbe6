"""The types and the layers that convolutions are tested on."""

from dataclasses import replace

import pytest
import torch

from tests.kernels.conv.conv_layers import DTYPES, SHAPES, Layer, make


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def layer(request: pytest.FixtureRequest, dtype: torch.dtype, generator: torch.Generator) -> Layer:
    shape = request.param
    if generator.device.type == "cuda":
        shape = replace(shape, precision="ieee")
    return make(shape, dtype, generator)
