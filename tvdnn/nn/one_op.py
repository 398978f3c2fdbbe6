"""An op alone: the passes of a network of this op, bound to the names of their tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Final

import torch

from ..graph import Graph, Network, Op, Param, Pass, Value
from ..ops.bind_pass import BoundPass, bind_pass
from ..ops.expand import Mode, Settings, expand
from ..ops.loss import LOSSES, TARGET, OutputLoss
from ..ops.operator import TORCH_DTYPES

X: Final = "x"
Y: Final = "y"
GRAD_Y: Final = "grad y"
PARAMS: Final = tuple(f"parameter {number}" for number in range(5))
KNOWN_OPS: Final = 4096  # ops of other settings, shapes or types, of 2 to 8 KB each
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NamedPass:
    """A pass, by name the tensors that it uses, and those that no later pass uses."""

    bound: BoundPass
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    params: tuple[str, ...]  # "" for one that the op lacks
    updates: tuple[str, ...]
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OneOp:
    """The passes of an op over a whole batch, without and with those backward."""

    batch: int
    forward: tuple[NamedPass, ...]
    backward: tuple[NamedPass, ...]
    made: Mapping[str, tuple[Shape, torch.dtype]]  # shape and type of each buffer
    saved: tuple[str, ...]  # what the backward passes read and do not make
    input_grad: str  # "" where it is not wanted
    param_grads: tuple[str, ...]  # one for each parameter, "" where it is not wanted


@lru_cache(maxsize=KNOWN_OPS)
def one_op(
    kind: str,
    attrs: tuple[tuple[str, Any], ...],
    shape: Shape,
    out: Shape | None,
    params: tuple[Shape | None, ...],
    wants: tuple[bool, ...],
    dtype: str,
    result: str,
) -> OneOp:
    """The op of an input of this shape, in the kernels' order, as those of its parameters.

    `wants` tells of the input and of each parameter whether its gradient is wanted, `dtype` is as
    in `Settings`, and `result` names what is handed out. `out` is the output's shape where that is
    not the input's.
    """
    network = _network(kind, attrs, shape, out or shape, params, wants)
    settings = Settings(
        dtype=dtype,
        chunk_size=1,
        sections=1,
        mode=Mode.AUTOGRAD if any(wants) else Mode.INFER,
        losses=(OutputLoss(kind),),
        input_grads=frozenset({X} if wants[0] else ()),
    )
    graph = expand(network, settings)
    grads = {name: found[0] for name, found in graph.param_grads.items()}
    names = {GRAD_Y: GRAD_Y}
    backward = _named(graph, graph.passes[graph.phase_split :], names)
    input_grad = graph.input_grads.get(X, "")
    input_grad = names.get(input_grad, input_grad)
    saved = _read_first(backward)
    return OneOp(
        batch=shape[0],
        forward=_freeing(_named(graph, graph.passes[: graph.phase_split], {}), {*saved, result}),
        backward=_freeing(backward, {*grads.values(), input_grad}),
        made={
            names.get(name, name): (buffer.shape, TORCH_DTYPES[buffer.dtype])
            for name, buffer in graph.buffers.items()
        },
        saved=saved,
        input_grad=input_grad,
        param_grads=tuple(grads.get(name, "") for name in PARAMS[: len(wants) - 1]),
    )


def _network(
    kind: str,
    attrs: Sequence[tuple[str, Any]],
    shape: Shape,
    out: Shape,
    params: Sequence[Shape | None],
    wants: Sequence[bool],
) -> Network:
    """The network of the op alone, with a target where the op is a loss."""
    values, inputs = {X: Value(X, shape), Y: Value(Y, out)}, [X]
    if kind in LOSSES:
        loss = OutputLoss(kind)
        values[TARGET] = loss.target(values[X])
        values[Y] = Value(Y, (2,))
        inputs.append(TARGET)
    names = tuple("" if each is None else name for name, each in zip(PARAMS, params, strict=False))
    trained = (*wants[1:], *(False,) * len(params))
    declared = {
        name: Param(name, each, 4 * prod(each), requires_grad=wanted)
        for name, each, wanted in zip(names, params, trained, strict=False)
        if each is not None
    }
    return Network(
        name=kind,
        values=values,
        ops=(Op("op", kind, tuple(inputs), Y, names, dict(attrs)),),
        params=declared,
        inputs=tuple(inputs),
        outputs=(Y,),
        training=True,
    )


def _named(graph: Graph, passes: Sequence[Pass], names: dict[str, str]) -> list[NamedPass]:
    """The passes, which leave tensors of the caller's as they are.

    `names` maps the buffers that the caller has filled to themselves. Once a pass writes to one it
    maps it to another name.
    """
    found: list[NamedPass] = []
    for each in passes:
        reads = tuple(names.get(use.buffer, use.buffer) for use in each.reads)
        written = {use.buffer for use in each.writes}
        names |= {name: f"{name} in its own tensor" for name in names.keys() & written}
        writes = tuple(names.get(use.buffer, use.buffer) for use in each.writes)
        bound = bind_pass(graph, each)
        found.append(NamedPass(bound, reads, writes, each.params, each.updates))
    return found


def _freeing(passes: Sequence[NamedPass], kept: set[str]) -> tuple[NamedPass, ...]:
    """The passes; behind the last that uses a tensor, unless it is `kept`, that is freed."""
    found: list[NamedPass] = []
    later = {*kept, ""}
    for each in reversed(passes):
        used = dict.fromkeys((*each.reads, *each.writes, *each.params, *each.updates))
        found.append(replace(each, frees=tuple(name for name in used if name not in later)))
        later |= used.keys()
    return tuple(reversed(found))


def _read_first(passes: Sequence[NamedPass]) -> tuple[str, ...]:
    """What passes read before any of them writes it, but the gradient that they are given."""
    made, found = {GRAD_Y, ""}, dict[str, None]()
    for each in passes:
        found |= dict.fromkeys(name for name in (*each.reads, *each.params) if name not in made)
        made |= {*each.writes}
    return tuple(found)
