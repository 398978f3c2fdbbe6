"""From a module, inputs and settings to the Graph of a step and the costs to plan it with."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import InputError
from ..graph import ChunkSizes, Graph, Network, Rewrites
from ..ops import Settings
from ..ops.expand import DTYPES, expand, with_rewrites
from ..ops.loss import OutputLoss
from ..optim import SGD, Optimizer
from ..planner.ir.costs import Costs, Roofline
from ..planner.ir.hardware import load
from ..planner.ir.settings import DEFAULT_POLICY
from ..planner.policies import policy_named
from ..trace.trace import trace
from ..units import parse_bytes
from .computed_weights import computed_nbytes
from .losses import LossLike, check_losses, losses_of

Progress = Callable[[str, float], None]
DEFAULT_HARDWARE: Final = "H200"
NOTHING_TO_TRAIN: Final = (
    "the network has no parameter with requires_grad; there is nothing to train"
)
ChunkSize: TypeAlias = int | str | ChunkSizes | None


def resolve_dtype(dtype: str | None, device: torch.device) -> str:
    """The requested compute type, else float32 in the precision that torch's switches allow."""
    if dtype is None:
        switch: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        return "tf32" if device.type == "cuda" and switch.fp32_precision == "tf32" else "fp32"
    return _known_dtype(dtype)


def autocast_dtype(dtype: torch.dtype) -> str:
    """The compute type of an autocast region."""
    if dtype != torch.bfloat16:
        name = str(dtype).removeprefix("torch.")
        raise InputError(f"autocast to {name} is not supported; ask it for torch.bfloat16")
    return "bf16"


def _known_dtype(dtype: str) -> str:
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}")
    return dtype


def chunks_of(chunk_size: ChunkSize) -> ChunkSizes | None:
    """The requested chunk sizes: bytes, text ("4MiB") or by map class; None for no request.

    Raises InputError for a text that is no size.
    """
    if isinstance(chunk_size, ChunkSizes):
        return chunk_size
    nbytes = parse_bytes(chunk_size)
    return None if nbytes is None else ChunkSizes(nbytes)


def give_lazy_parameters(module: nn.Module, *inputs: torch.Tensor, opaque: bool = False) -> None:
    """Give lazy layers their parameters, as a first call on inputs of these shapes would."""
    if any(is_lazy(param) for param in module.parameters()):
        trace(module, tuple(torch.empty(x.shape, device="meta") for x in inputs), opaque=opaque)


def training_graph(
    module: nn.Module,
    x: torch.Tensor,
    *,
    fuse: bool = False,
    coded_pools: bool = False,
    loss: LossLike | Sequence[LossLike] = "cross_entropy",
    loss_weights: Sequence[float] | None = None,
    optimizer: Optimizer | None = None,
    dtype: str = "fp32",
    chunk_size: ChunkSize = None,
    sections: int | None = None,
    row_tiles: int | None = None,
    updates_last: bool = False,
    masks_by_signs: bool = False,
    remakes_maps: bool = False,
) -> Graph:
    """The Graph of one training step of `module` on a batch like `x`: [N, ...], on any device.

    `fuse` joins ops that a kernel computes; with `coded_pools`, where they are not joined, max
    poolings behind a ReLU leave codes; `loss` and `loss_weights` are as Trainer's; `chunk_size` is
    the bytes of a section, `row_tiles` into how many tiles of rows maps are cut if not by size.
    With `updates_last` parameters are updated behind all else, as plans that use a file ask. With
    `masks_by_signs` joined normalizations mask gradients by the signs of their outputs, as plans
    that round maps ask. With `remakes_maps` pointwise convolutions and their weight gradients
    make the maps that they alone read, as they load what these are made of; so do the averages and
    gates of squeeze and excitation.
    """
    losses = losses_of(loss, loss_weights, torch.device("meta")).each
    settings = training_settings(losses, optimizer or SGD(), dtype, chunk_size, sections)
    network = check_trainable(trace(module, (x,), ordered=True), losses)
    found = computed_nbytes(network, settings.mode, {})
    settings = with_rewrites(settings, Rewrites(fuse, coded_pools, masks_by_signs, remakes_maps))
    settings = replace(settings, row_tiles=row_tiles, computed_nbytes=found)
    settings = replace(settings, updates_last=updates_last)
    return expand(network, settings)


def with_rewrites_for(
    settings: Settings, policy: str | None, *, may_round: bool = False
) -> Settings:
    """The settings with the rewrites that the policy plans over, or asks for where it may round."""
    rewrites = policy_named(policy or DEFAULT_POLICY).rewrites(may_round=may_round)
    return with_rewrites(settings, rewrites)


def training_settings(
    losses: tuple[OutputLoss, ...],
    optimizer: Optimizer,
    dtype: str,
    chunk_size: ChunkSize,
    sections: int | None,
    *,
    updates_last: bool = False,
    reserve: int = 0,
) -> Settings:
    """Settings of a training step. Raises InputError for an unknown type or size."""
    settings = Settings(
        _known_dtype(dtype),
        sections=sections,
        losses=losses,
        optimizer=optimizer,
        updates_last=updates_last,
        reserve=reserve,
    )
    return with_chunks(settings, chunks_of(chunk_size))


def with_chunks(settings: Settings, chunks: ChunkSizes | None) -> Settings:
    """The settings with these chunk sizes, if there are any."""
    if chunks is None:
        return settings
    return replace(settings, chunk_size=chunks.default, chunk_classes=chunks.classes)


def check_trainable(network: Network, losses: Sequence[OutputLoss]) -> Network:
    """The network. Raises InputError unless the losses take its outputs and a parameter trains."""
    check_losses(network, losses)
    if not any(param.requires_grad for param in network.params.values()):
        raise InputError(NOTHING_TO_TRAIN)
    return network


def check_master_weights(module: nn.Module) -> None:
    """Raise InputError unless all parameters are float32, as a trainer's updates are."""
    for name, param in module.named_parameters():
        if not is_lazy(param) and param.dtype != torch.float32:
            found = str(param.dtype).removeprefix("torch.")
            raise InputError(
                f"parameter {name} is {found}, not float32; call .float() on the module"
                " (the dtype of the computation is chosen apart)"
            )


def prepared(module: nn.Module, example_inputs: torch.Tensor) -> torch.device:
    """The device of a module that is to be trained, its lazy layers given their parameters.

    Raises InputError unless all parameters are float32.
    """
    check_master_weights(module)
    give_lazy_parameters(module, example_inputs)
    return next(module.parameters(), torch.empty(0)).device


def default_costs(graph: Graph) -> Costs:
    """The costs of a roofline, for plans without measured costs."""
    return Roofline(load(DEFAULT_HARDWARE), graph.dtype)
