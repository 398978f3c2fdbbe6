"""Networks that resize maps, beside their skips: the bits of keep, gradients as torch's."""

import pytest
import torch
from torch.nn import functional

import tvdnn
from tests.networks.resize import Decoder
from tests.support.exact import Functional
from tvdnn.engine import training_graph
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.graph import Kind
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 4, (3, 8, 8), 3


def test_what_is_resized_is_not_kept() -> None:
    graph = training_graph(Decoder(), torch.empty(BATCH, *SHAPE))
    resizing = [each for each in graph.passes if graph.ops[each.op].kind == "resize"]
    backward = [each for each in resizing if each.role == "grad_input"]
    assert len(backward) == 4
    for each in backward:
        (read,) = each.reads
        assert graph.buffers[read.buffer].kind is Kind.GRAD


def test_nothing_is_done_where_sides_stay() -> None:
    network = trace(
        Functional(lambda _, x: functional.interpolate(x, (8, 8))), (torch.empty(2, *SHAPE),)
    )
    kinds = [op.kind for op in network.ops]
    assert kinds == ["view", "affine"]  # the latter copies an input that is returned


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "bicubic"}, "interpolate by bicubic .by nearest or bilinear"),
        ({"mode": "bilinear", "antialias": True}, "bilinear with antialias"),
    ],
)
def test_other_modes_are_refused(settings: dict[str, object], message: str) -> None:
    net = Functional(lambda _, x: functional.interpolate(x, (5, 5), **settings))
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.empty(2, *SHAPE),))


def test_maps_without_pixels_are_refused() -> None:
    with pytest.raises(InputError, match=r"\[2, 3, 0, 2\] without pixels of \[2, 3, 1, 4\]"):
        tvdnn.nn.Upsample(scale_factor=0.5, mode="bilinear")(torch.randn(2, 3, 1, 4))
