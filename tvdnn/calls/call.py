"""An op in the making, and what translators ask of the nodes and settings of a call."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node
from torch.nn import Parameter

from ..functional import Ints
from ..graph.network import channels_last_axes
from ..kernels.pointwise.activation import FUNCTIONS as ACTIVATIONS
from ..kernels.pointwise.broadcast import FUNCTIONS as BROADCAST_FUNCTIONS
from ..kernels.pointwise.unary import FUNCTIONS as UNARY

Shape = tuple[int, ...]
ARITHMETIC = ("add", "add_multiple", "affine", "multiply", "straight_through")
ELEMENTWISE = frozenset({"relu", *ACTIVATIONS, *UNARY, *ARITHMETIC, "dropout", "view"})
BROADCASTS = tuple(f"broadcast_{function}" for function in BROADCAST_FUNCTIONS)
ANY_DIMENSIONS = frozenset(
    {
        *("remap", "rearrange", "join", "view", "reduce_axes", "expand", "softmax", "log_softmax"),
        *BROADCASTS,
    }
)
UNNAMED = "tensor "  # before the id of a tensor that is no parameter or buffer of the network
OF_MAPS = "it takes maps [N, C, H, W]"
OF_PIXELS = ("view", "flatten", "adaptive_avg_pool2d")  # maps whose pixels are counted as one axis


@dataclass(frozen=True, slots=True)
class Call:
    """An op in the making: the nodes that it reads, its parameters' nodes and its settings.

    `inputs` may also be the results of further calls, where one torch call stands for several ops.
    `state` are the nodes of the module's buffers that it reads or changes.
    `axes` say where the dimensions of its result are stored, if it minds the order of its input's.
    Other ops take maps [N, C, H, W] and make such, but for those of ELEMENTWISE, which keep any,
    and those OF_PIXELS, which take [N, C, L] as well.
    """

    kind: str
    inputs: tuple["Source", ...]
    params: tuple[Node | None, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    axes: Shape | None = None
    state: tuple[Node | None, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Inner:
    """The result of a call that is part of another one, which reads it.

    `shape` is torch's shape of the result, `axes` tell where its dimensions are stored.
    """

    call: Call
    shape: Shape
    axes: Shape


Source = Node | Inner


class UnsupportedCallError(Exception):
    """A torch call that is no op of tvdnn; the message names it, or which use of it."""


def nested(call: Call) -> Iterator[Call]:
    """The call and those whose results it reads."""
    yield call
    for source in call.inputs:
        if isinstance(source, Inner):
            yield from nested(source.call)


def is_parameter(node: Node) -> bool:
    """Whether a node is a parameter, a view of one, or computed of parameters and buffers."""
    base = node.meta.get("base", node.meta["value"])
    return isinstance(base, Parameter) or is_computed(node)


def is_computed(node: Node) -> bool:
    """Whether a node is what the network computes of parameters and buffers alone."""
    return bool(node.meta.get("computed"))


def shape_of(node: Source) -> Shape:
    """Torch's shape of what `node` yields."""
    return node.shape if isinstance(node, Inner) else tuple(node.meta["value"].shape)


def axes_of(node: Source) -> Shape:
    """Of each dimension of what `node` yields, the axis where that is stored."""
    axes: Shape = node.axes if isinstance(node, Inner) else node.meta["axes"]
    return axes


def call_of(node: Source) -> Call | None:
    """The call that yields `node`; None for inputs, parameters and what is refused."""
    call: Call | None = node.call if isinstance(node, Inner) else node.meta["call"]
    return call


def call_behind(node: Source) -> Call | None:
    """The call that yields `node`, if one that reads `node` may read what that call reads instead.

    None where no gradient goes back from `node`.
    """
    stops = isinstance(node, Node) and node.meta["stops"]
    return None if stops else call_of(node)


def result_axes(name: str, call: Call, out: Shape) -> Shape:
    """Of each dimension of a call's result, the axis where that is stored."""
    if any(len(shape_of(x)) == 3 for x in call.inputs) and not _takes_rows(call):
        raise UnsupportedCallError(f"{name} of 3 dimensions ({OF_MAPS})")
    if call.axes is not None:
        return call.axes
    orders = {axes_of(x) for x in call.inputs}
    if call.kind in ELEMENTWISE and len(orders) == 1:
        return orders.pop()
    if any(order != channels_last_axes(len(order)) for order in orders):
        raise UnsupportedCallError(f"{name} of permuted maps (permute them back to [N, C, H, W])")
    return channels_last_axes(len(out))


def _takes_rows(call: Call) -> bool:
    """Whether a call takes three dimensions: the pixels of a map, or what opaque ops make."""
    return call.kind in (*ANY_DIMENSIONS, *ELEMENTWISE, *OF_PIXELS, "opaque")


def in_row(value: Ints, other: int) -> tuple[int, int]:
    """A setting of rows [N, C, L] for maps of one row; `other` is that of their height."""
    return other, value if isinstance(value, int) else int(value[0])
