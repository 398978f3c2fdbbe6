"""From the traced network to the Graph: passes forward, backward in reverse, and updates."""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from math import prod

from ..errors import InputError
from ..gc_pause import without_collection
from ..graph import (
    DTYPE_NBYTES,
    RUN_CHUNKS,
    ChunkSizes,
    Direction,
    Graph,
    GraphVariants,
    Kind,
    Network,
    Op,
    Param,
    Rewrites,
    Use,
    fuse,
    relu_max_pool2d_codes,
)
from ..kernels.optim.pieces import piece_numel
from ..optim import SGD, Optimizer
from ..placement import aligned
from ..placement.cuda_blocks import block_nbytes
from .buckets import end_sums, plan_buckets
from .builder import Builder, Ranks
from .chunk_size import default_chunk_size
from .facts import with_facts
from .gradient_sums import add_grads
from .in_place import place_in_input
from .loss import LOSSES, TARGET, OutputLoss, with_losses, without_loss_names
from .optimizer import flush_all_updates, flush_gradients
from .padded_maps import padded_widths
from .pieces import GATHERED_NBYTES
from .read_order import ReadOrder
from .registry import OPERATORS
from .remade_maps import rounded_by_readers
from .split_rows import common_tiles, split_rows
from .tf32 import with_gradients_by_input, with_rounding

CONTROL_NBYTES = 512
HANDED_OUT_NBYTES = 3 * 512  # blocks of losses that the caller holds
DTYPES = {"fp32": ("float32", "ieee"), "tf32": ("float32", "tf32"), "bf16": ("bfloat16", "ieee")}


class Mode(Enum):
    """The purpose of a step.

    TRAIN updates inside the step, ACCUMULATE sums gradients for a later update, AUTOGRAD hands them
    to the caller, INFER has no backward.
    """

    TRAIN = "train"
    ACCUMULATE = "accumulate"
    AUTOGRAD = "autograd"
    INFER = "infer"


TRAINING = (Mode.TRAIN, Mode.ACCUMULATE)
GRADIENT_SINKS = {Mode.TRAIN: "update", Mode.ACCUMULATE: "accumulate"}


@dataclass(frozen=True, slots=True)
class Settings:
    """How a network is expanded into a step."""

    # "fp32" (IEEE), "tf32" or "bf16".
    dtype: str
    # The bytes of a section; None for as many as the size of the network asks for.
    chunk_size: int | None = None
    mode: Mode = Mode.TRAIN
    # The number of sections per map, in the place of their bytes.
    sections: int | None = None
    # Those of the outputs, in their order.
    losses: tuple[OutputLoss, ...] = (OutputLoss(),)
    optimizer: Optimizer | None = None
    # The network inputs whose gradient is wanted.
    input_grads: frozenset[str] = frozenset()
    # Device bytes of the caller's to count, those that opaque ops allocate, and those that torch
    # allocates for computed parameters.
    reserve: int = 0
    opaque_nbytes: int = 0
    computed_nbytes: int = 0
    # Whether ops that one kernel computes are joined.
    fuse: bool = False
    # Whether max poolings behind a ReLU leave codes where ops are not joined.
    coded_pools: bool = False
    # The row tiles that the maps of a sample are cut into; None for as many as their size asks for.
    row_tiles: int | None = None
    # The bytes of sections of maps of some classes.
    chunk_classes: tuple[tuple[int, int], ...] = ()
    # Whether the masks of joined normalizations' ReLUs are signs that stay beside rounded maps.
    masks_by_signs: bool = False
    # Whether pointwise convolutions and their weight gradients make the maps that they alone read.
    remakes_maps: bool = False
    # Whether parameters are updated behind all other passes, with whole gradients until then.
    updates_last: bool = False
    # The processes that train together; None for one alone.
    ranks: Ranks | None = None


@without_collection()
def expand(network: Network, settings: Settings) -> Graph:
    """The passes and buffers of one step of `network`.

    Raises InputError for an empty batch and for settings that make no sense, or row tiles that
    there cannot be.
    """
    _check(network, settings)
    dtype, precision = DTYPES[settings.dtype]
    chunk_size = settings.chunk_size or default_chunk_size(network, dtype)
    training, infers = settings.mode in TRAINING, settings.mode is Mode.INFER
    traced = without_loss_names(network, settings.losses) if training else network
    losses = settings.losses if training else ()
    plain = with_losses(traced, losses)
    fused = cache(lambda: with_losses(fuse(traced, settings.masks_by_signs), losses))
    network = fused() if settings.fuse else plain
    if settings.coded_pools and not settings.fuse:
        network = with_losses(relu_max_pool2d_codes(traced), losses)
    wanted = frozenset() if infers else _wanted(network, settings.input_grads)
    rounds = precision == "tf32"
    network = with_gradients_by_input(network, wanted) if rounds else network
    tiles = settings.row_tiles or common_tiles(plain, fused, dtype, chunk_size, settings.sections)
    b = _builder(traced, plain, network, tiles, wanted, chunk_size, settings)
    inputs = _add_inputs(b, settings)
    _forward(b)
    boundary = len(b.passes)
    output_maps = tuple(b.resolved(Use(b.buffer_of[name])).buffer for name in network.outputs)
    if not infers:
        b.direction = Direction.BACKWARD
        if not training:
            inputs |= _add_output_grads(b)
        _backward(b, settings)
    input_grads = _input_grads(b, settings)
    handed_out = list(output_maps)
    if settings.mode is Mode.AUTOGRAD:
        handed_out += [*(grads[0] for grads in b.param_grads.values()), *input_grads.values()]
    ops = {op.name: op for op in b.network.ops} | b.added
    rounding = with_rounding(b.passes if rounds else (), ops, b.buffers)
    buffers = {name: each for name, each in b.buffers.items() if b.is_buffer(name)}
    passes, buffers = with_facts(rounding.passes or tuple(b.passes), ops, buffers)
    return Graph(
        traced=traced,
        network=network,
        ops=ops,
        buffers=buffers,
        passes=passes,
        inputs=inputs,
        outputs=tuple(dict.fromkeys(handed_out)),
        output_maps=output_maps,
        input_grads=input_grads,
        param_grads=b.own_param_grads,
        grads_in_buckets=b.bucket_places,
        phase_split=boundary if settings.mode is Mode.AUTOGRAD else len(b.passes),
        fixed=_fixed_nbytes(network, settings),
        dtype=settings.dtype,
        chunk_size=chunk_size,
        vdnn_traits={op.name: trait for op in network.ops if (trait := OPERATORS[op.kind].vdnn)},
        rounded_inputs=rounding.inputs,
        rounded_ops=rounding.ops | (rounded_by_readers(b) if rounds else frozenset()),
        row_tiles=tiles,
    )


def _input_grads(b: Builder, settings: Settings) -> dict[str, str]:
    """By input, the buffer of its gradient, if it is wanted and there is one."""
    read = [name for name in settings.input_grads if name in b.gradient_terms]
    return {name: b.resolved(Use(b.gradient_terms[name][0])).buffer for name in read}


def with_rewrites(settings: Settings, rewrites: Rewrites) -> Settings:
    """The settings with these rewrites in place of their own."""
    fuse, coded_pools, by_signs, remakes = rewrites
    settings = replace(settings, fuse=fuse, coded_pools=coded_pools)
    return replace(settings, masks_by_signs=by_signs, remakes_maps=remakes)


def graph_variants(network: Network, settings: Settings) -> GraphVariants:
    """The graphs of one step of `network` by these settings, whatever they say of rewrites."""
    return GraphVariants(lambda rewrites: expand(network, with_rewrites(settings, rewrites)))


def _builder(
    traced: Network,
    plain: Network,
    network: Network,
    tiles: int,
    wanted: frozenset[str],
    chunk_size: int,
    settings: Settings,
) -> Builder:
    """A builder of the network in row tiles. The `plain` network is the same without joined ops."""
    dtype, precision = DTYPES[settings.dtype]
    tiled = split_rows(network, tiles)
    strided = {kind: each.strided for kind, each in OPERATORS.items()}
    in_place = {kind for kind, each in OPERATORS.items() if each.in_place}
    return Builder(
        network=tiled,
        dtype=dtype,
        precision=precision,
        chunks=ChunkSizes(chunk_size, settings.chunk_classes),
        sections=settings.sections,
        row_tiles=tiles,
        wanted=wanted,
        optimizer=settings.optimizer or SGD(),
        gradient_sink=GRADIENT_SINKS.get(settings.mode, ""),
        updates_last=settings.updates_last,
        ranks=settings.ranks if settings.mode is Mode.TRAIN else None,
        world=settings.ranks.size if settings.ranks else 1,
        remakes_maps=settings.remakes_maps,
        order=ReadOrder(traced, tiled.ops),
        strided=strided,
        padded=padded_widths(plain, strided, in_place),
    )


def _check(network: Network, settings: Settings) -> None:
    if network.batch < 1:
        raise InputError("the batch has no samples; give at least one")
    if settings.sections is not None and settings.sections < 1:
        raise InputError(f"sections is {settings.sections}; it must be at least 1")


def _wanted(network: Network, input_grads: frozenset[str]) -> frozenset[str]:
    """Values from which a gradient flows to a parameter that trains, or to a wanted input."""
    wanted = set(input_grads)
    for op in network.ops:
        if op.output in network.detached:
            continue
        reached = op.reached
        params = (network.params[name] for name in reached if name in network.params)
        if any(param.requires_grad for param in params) or not wanted.isdisjoint(reached):
            wanted.add(op.output)
    return frozenset(wanted)


def _add_inputs(b: Builder, settings: Settings) -> dict[str, str]:
    for name in b.network.inputs:
        dtype = settings.losses[0].target_dtype if name == TARGET else b.dtype
        rows = _run_of_readers(b, name)
        b.put(name, b.add_map(name, b.shape(name), Kind.INPUT, dtype, rows))
    return {name: name for name in b.network.inputs}


def _run_of_readers(b: Builder, name: str) -> int:
    """Samples in a run of the largest map that is made of the value."""
    made = (b.shape(op.output) for op in b.network.ops if name in op.inputs)
    row_nbytes = max((prod(shape[1:]) for shape in made), default=1) * DTYPE_NBYTES[b.dtype]
    return RUN_CHUNKS * b.rows_for(row_nbytes)


def _add_output_grads(b: Builder) -> dict[str, str]:
    """Buffers that the caller fills with the outputs' gradients before the backward half."""
    wanted = filter(b.needs_grad, dict.fromkeys(b.network.outputs))
    return {b.new_grad(name): f"grad {name}" for name in wanted}


def _forward(b: Builder) -> None:
    if b.ranks is not None:
        plan_buckets(b, b.ranks)
    for op in b.network.ops:
        definition = OPERATORS[op.kind]
        if definition.in_place:
            place_in_input(b, op)
        definition.forward(b, op)


def _backward(b: Builder, settings: Settings) -> None:
    """The passes backward, each op's before those that consume its parameters' gradients."""
    unflushed: list[Op] = []
    for op in reversed(b.network.ops):
        b.take_turn(op)
        if op.kind in LOSSES:
            OPERATORS[op.kind].backward(b, op)
            continue
        if not b.needs_grad(op.output) or op.output not in b.gradient_terms:
            continue
        definition = OPERATORS[op.kind]
        add_grads(b, op, definition)
        if not definition.in_place:  # whose gradient stays beside the pass that it overwrites
            _flush_all(b, unflushed)
        definition.backward(b, op)
        b.drop_grads(op.output)
        unflushed.append(op)
    _flush_all(b, unflushed)
    flush_all_updates(b)
    if b.ranks is not None:
        end_sums(b, b.buffer_of["loss"])
    for name in sorted(settings.input_grads & b.gradient_terms.keys()):
        add_grads(b, b.add_op(Op(name, "view", (), name, (), {})))


def _flush_all(b: Builder, ops: list[Op]) -> None:
    present = b.turn
    while ops:
        b.turn = ops[0]
        flush_gradients(b, ops.pop(0))
    b.turn = present


def _fixed_nbytes(network: Network, settings: Settings) -> dict[str, int]:
    """Bytes outside the arena, by purpose."""
    params = sum(param.nbytes for param in network.params.values())
    trained = [p.name for p in network.params.values() if p.requires_grad]
    updated = [name for name in trained if network.params[name].computed_from is None]
    pieces = {p.name: _piece_nbytes(p, settings.ranks) for p in network.params.values()}
    size = settings.ranks.size if settings.ranks and settings.ranks.sharded else 1
    kept_nbytes = sum(aligned(pieces[name]) for name in updated)
    states = len(settings.optimizer.states) if settings.optimizer else 0
    kept = {Mode.INFER: frozenset(), Mode.TRAIN: network.completed_last}.get(settings.mode, trained)
    fixed = {
        "parameters": params,
        "optimizer state": block_nbytes(states * kept_nbytes),
        "parameter gradients": sum(
            block_nbytes(aligned(size * pieces[n])) for n in trained if n in kept
        ),
        "control": CONTROL_NBYTES + HANDED_OUT_NBYTES + (GATHERED_NBYTES if size > 1 else 0),
        "reserve": settings.reserve,
        "opaque ops": settings.opaque_nbytes,
        "computed parameters": settings.computed_nbytes,
    }
    return {name: nbytes for name, nbytes in fixed.items() if nbytes}


def _piece_nbytes(param: Param, ranks: Ranks | None) -> int:
    """Bytes of a parameter, or of the piece of it whose state a process has."""
    if ranks is None or not ranks.sharded:
        return param.nbytes
    numel: int = piece_numel(prod(param.shape), ranks.size)
    return numel * DTYPE_NBYTES[param.dtype]
