"""TracedOp: an op in the making, and questions of translators about nodes and settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node
from torch.nn import Parameter

Shape = tuple[int, ...]
UNNAMED = "tensor "  # before the id of a tensor that is no parameter or buffer of the network


@dataclass(frozen=True, slots=True)
class TracedOp:
    """An op in the making, of one kind."""

    kind: str
    # The nodes that it reads, or further ops, where one call of torch's stands for several ops.
    inputs: tuple["Source", ...]
    # The nodes of its parameters.
    params: tuple[Node | None, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    # Where the dimensions of its result are stored, if it minds the order of its input's.
    axes: Shape | None = None
    # The nodes of the module's buffers that it reads or changes.
    state: tuple[Node | None, ...] = ()

    @property
    def tracks(self) -> bool:
        """Whether it changes buffers of its module."""
        tracks = self.attrs.get("training") or self.attrs.get("tracked")
        return bool(tracks) and any(buffer is not None for buffer in self.state)


@dataclass(frozen=True, eq=False, slots=True)
class Inner:
    """The result of an op in the making that another one reads, of the same call of torch's."""

    call: TracedOp
    # Torch's shape of the result.
    shape: Shape
    # Where the dimensions of the result are stored.
    axes: Shape


Source = Node | Inner


def inner(call: TracedOp, shape: Sequence[int]) -> Inner:
    """The result of a call that says where its dimensions are stored."""
    assert call.axes is not None
    return Inner(call, tuple(shape), call.axes)


class UnsupportedCallError(Exception):
    """A torch call that is no op of tvdnn; the message names it, or which use of it."""


class PerSampleError(UnsupportedCallError):
    """An operand that is no map has another value for each sample of the batch."""


def nested(call: TracedOp) -> Iterator[TracedOp]:
    """The call and the calls whose results it reads."""
    yield call
    for source in call.inputs:
        if isinstance(source, Inner):
            yield from nested(source.call)


def given_settings(
    defaults: Mapping[str, Any], given: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of a call, whose `defaults` are in torch's order."""
    return {**defaults, **dict(zip(defaults, given, strict=False)), **named}


def is_parameter(node: Node) -> bool:
    """Whether a node is a parameter, a view of one, or computed of parameters and buffers."""
    base = node.meta.get("base", node.meta["value"])
    return isinstance(base, Parameter) or is_computed(node)


def is_computed(node: Node) -> bool:
    """Whether a node is computed of parameters, buffers and constants alone."""
    return bool(node.meta.get("computed"))


def shape_of(node: Source) -> Shape:
    """Torch's shape of a result."""
    return node.shape if isinstance(node, Inner) else tuple(node.meta["value"].shape)


def axes_of(node: Source) -> Shape:
    """Of each dimension of a result, the axis where that is stored."""
    axes: Shape = node.axes if isinstance(node, Inner) else node.meta["axes"]
    return axes


def call_of(node: Source) -> TracedOp | None:
    """The call that yields `node`; None for inputs, parameters and refused calls."""
    call: TracedOp | None = node.call if isinstance(node, Inner) else node.meta["call"]
    return call


def views_of(node: Source) -> Iterator[tuple[Source, Source]]:
    """The views that lead to `node`, the last first, each with what it is a view of."""
    call = call_of(node)
    while call is not None and call.kind == "view":
        (source,) = call.inputs
        yield node, source
        node, call = source, call_of(source)


def call_behind(node: Source) -> TracedOp | None:
    """The call that yields `node`, if a reader of `node` may read that call's input instead.

    None where no gradient goes back from `node`.
    """
    stops = isinstance(node, Node) and node.meta["stops"]
    return None if stops else call_of(node)
