"""The references run under CUDA graph capture: no copies from the CPU, no waits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tvdnn
from bench.offline.steps import launch
from tvdnn.engine import training_graph
from tvdnn.kernels.pool.max_grad import max_unpool2d_reference
from tvdnn.optim import SGD

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique2", "equal", "item")


class Capturable(TorchDispatchMode):
    """Fails for operations that a capture refuses, on tensors of the meta device.

    `torch.tensor` of Python numbers shows as `lift_fresh`: on a GPU it copies from pageable memory.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        assert name not in (*WAITING, "lift_fresh"), f"{name} cannot be captured"
        if name in ("index", "index_put", "index_put_"):
            chosen = [each for each in args[1] if each is not None]
            assert all(each.dtype != torch.bool for each in chosen), "a mask as an index"
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            on_cpu = isinstance(each, torch.Tensor) and each.device.type == "cpu" and each.dim() > 0
            assert not on_cpu, f"{name} makes a tensor on the CPU"
        return made


def mixed() -> nn.Module:
    """Layers that the models have not."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=None), nn.ReLU()),
        *(nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 3, groups=8), nn.GroupNorm(2, 8), nn.GELU()),
        *(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Dropout(), nn.Dropout2d()),
        *(nn.ConvTranspose2d(8, 8, 2, stride=2), nn.LocalResponseNorm(3), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.LazyLinear(16), nn.LayerNorm(16), nn.BatchNorm1d(16), nn.Linear(16, 7)),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet18": (lambda: tvdnn.models.by_name("resnet18"), 64),
    "densenet121": (lambda: tvdnn.models.by_name("densenet121"), 64),
    "vgg11": (lambda: tvdnn.models.by_name("vgg11"), 64),
    "mixed": (mixed, 16),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("dtype", "fuse"), [("bf16", True), ("tf32", False)])
def test_every_pass_of_a_step_can_be_captured(name: str, dtype: str, fuse: bool) -> None:
    """Each distinct pass of one training step, by the references."""
    make, side = NETS[name]
    with torch.device("meta"):
        net, x = make(), torch.empty(2, 3, side, side)
    graph = training_graph(net, x, optimizer=SGD(momentum=0.9), dtype=dtype, fuse=fuse)
    kinds = {(graph.ops[each.op].kind, each.role): i for i, each in enumerate(graph.passes)}
    for index in kinds.values():
        with Capturable():
            launch(graph, index, "torch")


@pytest.mark.parametrize("kernel", [2, 3])
def test_codes_of_any_bytes_stay_inside_the_map(kernel: int) -> None:
    """A GPU rehearses every launch on whatever bytes the arena holds."""
    codes = torch.full((2, 4, 4, 8 // (4 if kernel == 2 else 2)), 0xFF, dtype=torch.uint8)
    dy, dx = torch.ones(2, 4, 4, 8), torch.empty(2, 8, 8, 8)
    window = {"kernel": (kernel, kernel), "stride": (2, 2), "padding": (kernel // 3,) * 2}
    max_unpool2d_reference(dy, codes, dx, **window)
    assert dx.sum() == dy.sum()
