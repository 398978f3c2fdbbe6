"""torch's ways on the frontier's networks: their blocks, and that checkpointing changes nothing."""

import pytest
import torch

from bench.frontier import NETS
from bench.rivals import WAYS, checkpoint_blocks, suits
from tests.support.accuracy import eager
from tvdnn import models

BLOCKS = {"vgg16": 5, "resnet50": 16, "densenet121": 58, "googlenet": 9, "unet": 9}
SIDES = {"unet": 32}


@pytest.mark.parametrize("name", NETS)
def test_checkpointed_blocks_give_the_gradients_of_the_network(name: str) -> None:
    torch.manual_seed(0)
    net = eager(models.by_name(name, width=1 / 4), torch.float32)
    net.eval()  # no dropout, and no batch of two to normalize over
    channels, *sides = models.image_shape(name)
    side = SIDES.get(name, 64 if name != "vgg16" else sides[0])
    x = torch.randn(1, channels, side, side)

    def gradients() -> list[torch.Tensor]:
        net.zero_grad(set_to_none=True)
        net(x).sum().backward()
        return [param.grad for param in net.parameters() if param.grad is not None]

    expected = gradients()
    assert checkpoint_blocks(name, net) == BLOCKS[name]
    found = gradients()
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


def test_only_networks_without_batch_normalization_accumulate() -> None:
    ways = [way for way in WAYS if way.startswith("accumulate")]
    assert ways
    assert [name for name in NETS if suits(name, ways[0])] == ["vgg16"]
    assert all(suits(name, "eager") for name in NETS)
