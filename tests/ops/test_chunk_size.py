"""The default chunk size: small networks have the least, others few sections."""

from math import prod

import torch

from tvdnn import models
from tvdnn.graph import Network
from tvdnn.ops import Settings, expand
from tvdnn.ops.chunk_size import (
    LEAST_CHUNK_SIZE,
    MOST_CHUNK_SIZE,
    MOST_SECTIONS,
    default_chunk_size,
)
from tvdnn.trace.trace import trace
from tvdnn.units import KIB, MIB


def traced(batch: int, side: int = 224) -> Network:
    with torch.device("meta"):
        return trace(models.vgg16(), (torch.empty(batch, 3, side, side),), ordered=True)


def test_small_networks_have_the_least() -> None:
    assert default_chunk_size(traced(1), "float32") == LEAST_CHUNK_SIZE == 16 * MIB


def test_large_networks_have_few_sections() -> None:
    network = traced(896)
    nbytes = sum(4 * prod(network.values[op.output].shape) for op in network.ops)
    chunk_size = default_chunk_size(network, "float32")
    assert chunk_size == 64 * MIB
    assert nbytes / chunk_size <= MOST_SECTIONS < nbytes / (chunk_size // 2)
    assert default_chunk_size(network, "bfloat16") == 32 * MIB


def test_there_is_a_largest_size() -> None:
    assert default_chunk_size(traced(1 << 20), "float32") == MOST_CHUNK_SIZE


def test_a_graph_has_the_default_unless_another_size_is_asked_for() -> None:
    network = traced(448)
    for fuse in (False, True):
        assert expand(network, Settings("fp32", fuse=fuse)).chunk_size == 32 * MIB
        assert expand(network, Settings("fp32", 64 * KIB, fuse=fuse)).chunk_size == 64 * KIB
