"""From a node of the traced graph to its op."""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from ..graph.network import channels_last_axes
from .registry import FUNCTIONS, METHODS, OPERATORS
from .reshape_translator import in_order
from .traced_op import (
    UNNAMED,
    Inner,
    Shape,
    TracedOp,
    UnsupportedCallError,
    axes_of,
    is_computed,
    is_parameter,
    nested,
    shape_of,
)

OF_MAPS = "it takes maps [N, C, H, W]"
REARRANGING = (
    *("squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_"),
    *("resize_", "resize_as_", "set_", "as_strided_"),
)


def translated(node: fx.Node, translator: Callable[..., TracedOp | None]) -> TracedOp | None:
    """A supported call's op, if it reads maps as maps and parameters as parameters."""
    name = torch_name(node)
    named = {key: value for key, value in node.kwargs.items() if key != "out"}
    settings = {"x" if key == "input" else key: value for key, value in named.items()}
    value = node.meta["value"]
    shape = tuple(value.shape) if isinstance(value, Tensor) else ()
    try:
        call = translator(shape, *node.args, **settings)
    except TypeError as error:
        raise UnsupportedCallError(f"{name}: {error}") from error
    if call is None:
        return None
    for each in nested(call):
        _check_sources(name, each)
    return _in_order(call)


def result_axes(name: str, call: TracedOp, out: Shape) -> Shape:
    """Of each dimension of a call's result, the axis where that is stored."""
    if any(len(shape_of(x)) == 3 for x in call.inputs) and not _takes_rows(call):
        raise UnsupportedCallError(f"{name} of 3 dimensions ({OF_MAPS})")
    if call.axes is not None:
        return call.axes
    orders = {axes_of(x) for x in call.inputs}
    if OPERATORS[call.kind].keeps_axes and len(orders) == 1:
        return orders.pop()
    if any(order != channels_last_axes(len(order)) for order in orders):
        raise UnsupportedCallError(f"{name} of permuted maps (permute them back to [N, C, H, W])")
    return channels_last_axes(len(out))


def _takes_rows(call: TracedOp) -> bool:
    record = OPERATORS[call.kind]
    return record.takes_rows or record.keeps_axes


def _in_order(call: TracedOp) -> TracedOp:
    """The call with maps in the order that it takes: channels last, or all in one order."""
    orders = {axes_of(x) for x in call.inputs}
    if call.axes is not None or (OPERATORS[call.kind].keeps_axes and len(orders) == 1):
        return call
    return replace(
        call, inputs=tuple(in_order(x, channels_last_axes(len(shape_of(x)))) for x in call.inputs)
    )


def _check_sources(name: str, call: TracedOp) -> None:
    """Check that maps come from the inputs, and parameters and buffers are the network's."""
    if any(_is_constant(source) for source in call.inputs if not isinstance(source, Inner)):
        raise UnsupportedCallError(f"{name} of a tensor that does not come from the inputs")
    viewed = [each for each in (*call.params, *call.state) if each and "base" in each.meta]
    if viewed and not OPERATORS[call.kind].takes_views:
        raise UnsupportedCallError(f"{name} with a view of {viewed[0].target} (give it as it is)")
    if not all(param is None or _is_held(param, call) for param in call.params):
        wanted = "a parameter or buffer" if OPERATORS[call.kind].takes_buffers else "a parameter"
        raise UnsupportedCallError(f"{name} with a weight or bias that is not {wanted}")
    if not all(buffer is None or _is_buffer(buffer) for buffer in call.state):
        raise UnsupportedCallError(f"{name} with statistics that are not the module's buffers")


def _is_constant(source: Any) -> bool:
    return not isinstance(source, fx.Node) or source.op == "get_attr"


def _is_held(source: Any, call: TracedOp) -> bool:
    """Whether the network holds a tensor that the call accepts as weight or bias."""
    parameter = _is_constant(source) and is_parameter(source)
    return parameter or (OPERATORS[call.kind].takes_buffers and _is_buffer(source))


def _is_buffer(source: Any) -> bool:
    named = _is_constant(source) and not str(source.target).startswith(UNNAMED)
    return named and not is_computed(source)


def translator_of(node: fx.Node) -> Callable[..., TracedOp | None] | None:
    if rearranges_in_place(node):
        return None
    if node.op == "call_method":
        name = str(node.target)
        return METHODS.get(name) or METHODS.get(name.removesuffix("_"))
    if node.op != "call_function" or _indexes_by_values(node):
        return None
    return FUNCTIONS.get(node.target)


def _indexes_by_values(node: fx.Node) -> bool:
    """Whether a node indexes a map by another map's values."""
    return node.target is operator.getitem and len(node.all_input_nodes) > 1


def takes_apart(node: fx.Node) -> bool:
    """Whether a node picks an element of a refused call's result."""
    if node.target is not operator.getitem:
        return False
    return not any(
        isinstance(source.meta["value"], Tensor) or _is_split(source)
        for source in node.all_input_nodes
    )


def _is_split(node: fx.Node) -> bool:
    """Whether a node yields several maps."""
    return translator_of(node) is not None and node.meta["refusal"] is None


def cuts_gradient(node: fx.Node) -> bool:
    """Whether no gradient goes from a call's result to its inputs."""
    return torch_name(node) in ("detach", "detach_", "random_map")


def rearranges_in_place(node: fx.Node) -> bool:
    """Whether a call changes the shape or the storage of a tensor itself."""
    return torch_name(node) in REARRANGING


def function_of(node: fx.Node, root: torch.nn.Module) -> Callable[..., Any]:
    """The function to call for a node's value."""
    function: Callable[..., Any]
    if node.op == "call_function":
        function = node.target  # type: ignore[assignment]
    elif node.op == "call_method":
        function = getattr(torch.Tensor, str(node.target))
    else:
        function = root.get_submodule(str(node.target)).forward
    return function


def torch_name(node: fx.Node) -> str:
    if node.target is getattr:
        return str(node.args[1])
    return getattr(node.target, "__name__", str(node.target))
