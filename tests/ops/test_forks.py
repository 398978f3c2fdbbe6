"""Networks with forks and joins: gradients as torch's, one map for all that read it, no copies."""

import random

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.support.examples import examples
from tests.support.networks import Sum, random_chain
from tests.support.running import random_batches
from tests.support.twins import beside_float64
from tvdnn.engine import training_graph
from tvdnn.graph import Kind

SHAPE, CLASSES = (3, 7, 7), 4


def plain(net: nn.Module) -> nn.Module:
    """The network without dropout, whose draws are not torch's, and safe for leaves."""
    for module in net.modules():
        if isinstance(module, (nn.Dropout, nn.Dropout2d)):
            module.p = 0.0
        if hasattr(module, "inplace") and not isinstance(module, Sum):
            module.inplace = False
    return net


@examples(40, batch=st.integers(1, 5))
def test_gradients_are_torchs(seed: int, batch: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = plain(random_chain(rng, 3, 7, CLASSES, forks=True))
    (drawn,) = random_batches(1, (batch, *SHAPE), CLASSES, seed)
    policy = rng.choice(("keep", "vdnn-all:m", "vdnn-all:p", "vdnn-conv"))
    options = {"policy": policy, "chunk_size": 1500, "order_seed": seed}
    for mine, theirs in beside_float64(net, drawn, **options):
        if theirs is None:
            assert mine is None
        else:
            assert mine is not None
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-5)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(147, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        total = torch.relu(self.conv(torch.relu(self.conv(x))) + x)
        return self.head(total.flatten(1))


def test_a_sum_takes_no_map_of_its_own_where_a_term_is_read_no_more() -> None:
    graph = training_graph(Residual(), torch.empty(2, *SHAPE))
    (adding,) = (each for each in graph.passes if each.op == "add" and each.role == "forward")
    (written,) = adding.writes
    assert written.buffer in {use.buffer for use in adding.reads}


def test_one_map_serves_all_its_readers() -> None:
    """A ReLU's output that a convolution and a sum read is one map; so is the gradient of a sum."""
    graph = training_graph(Residual(), torch.empty(2, *SHAPE))
    of_this_shape = [each for each in graph.buffers.values() if each.shape == (2, 7, 7, 3)]
    assert sum(each.kind is Kind.MAP for each in of_this_shape) == 3  # one for each convolution
    (summed,) = (each for each in graph.passes if each.name == "relu add_grad")
    assert summed.writes[0].buffer in {use.buffer for use in summed.reads}
