"""From a module, inputs and settings to the Graph of a step and the costs to plan it with."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import InputError
from ..graph import Graph, Network
from ..ops import Settings, expand
from ..ops.expand import DTYPES, Mode
from ..optim import SGD, Optimizer
from ..planner.costs import Costs, Roofline
from ..planner.hardware import load
from ..planner.planning import DEFAULT_CHUNK_SIZE
from ..trace import trace
from ..units import parse_bytes

Progress = Callable[[str, float], None]


def resolve_dtype(dtype: str | None, device: torch.device) -> str:
    """The compute type: as asked, else float32 in the precision that torch's own switches allow."""
    if dtype is None:
        allowed = device.type == "cuda" and torch.backends.cudnn.allow_tf32
        return "tf32" if allowed else "fp32"
    return _known_dtype(dtype)


def _known_dtype(dtype: str) -> str:
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}")
    return dtype


def give_lazy_parameters(module: nn.Module, *inputs: torch.Tensor) -> None:
    """Give lazy layers the parameters that a first call on inputs of these shapes would."""
    if any(is_lazy(param) for param in module.parameters()):
        trace(module, tuple(torch.empty(x.shape, device="meta") for x in inputs))


def training_graph(
    module: nn.Module,
    x: torch.Tensor,
    *,
    loss: str = "cross_entropy",
    optimizer: Optimizer | None = None,
    dtype: str = "fp32",
    chunk_size: int | str | None = None,
    sections: int | None = None,
    fuse: bool = False,
) -> Graph:
    """The Graph of one training step of `module` on a batch like `x`: [N, ...], on any device.

    The loss is softmax cross-entropy over the module's one output; `chunk_size` is the bytes of a
    section, `fuse` joins ops that one kernel computes.
    """
    settings = training_settings(loss, optimizer or SGD(), dtype, chunk_size, sections)
    return expand(check_trainable(trace(module, (x,))), replace(settings, fuse=fuse))


def training_settings(
    loss: str, optimizer: Optimizer, dtype: str, chunk_size: int | str | None, sections: int | None
) -> Settings:
    """Settings of a training step; errors name what is not known."""
    if loss != "cross_entropy":
        raise InputError(
            f"loss {loss!r} is not known; "
            "choose cross_entropy, or use virtualize with your own loss"
        )
    chunk = parse_bytes(chunk_size) or DEFAULT_CHUNK_SIZE
    return Settings(_known_dtype(dtype), chunk, Mode.TRAIN, sections, optimizer=optimizer)


def check_trainable(network: Network) -> Network:
    """The network, if it has one output of logits [N, classes] and something to train."""
    if len(network.outputs) != 1 or len(network.values[network.outputs[0]].shape) != 2:
        raise InputError(
            "cross_entropy needs a network with one output of shape [N, classes]; this one has "
            f"{len(network.outputs)} outputs or more dimensions: use virtualize with your own loss"
        )
    if not any(param.requires_grad for param in network.params.values()):
        raise InputError(
            "the network has no parameter with requires_grad; there is nothing to train"
        )
    return network


def default_costs(graph: Graph) -> Costs:
    """Costs to plan with where nothing is measured: the H200's roofline."""
    return Roofline(load("H200"), graph.dtype)
