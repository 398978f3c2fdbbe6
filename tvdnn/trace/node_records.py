"""The records that the tracer keeps of each node, in its `meta`.

`value`, `version`, `parent`, `view`, `carries` and `shows` are those of state/functionalize.py.
Further keys:

| key | meaning |
|---|---|
| name | the module's path; in a module of the user's own also the function's name |
| axes | where the dimensions of the value are stored |
| call | the op; None for a node that is no op |
| refusal | why there is no op; None where there is one |
| within | the path of the module that makes the call |
| at | the file and line of the call |
| graded | whether torch recorded gradients |
| stops | whether no gradient goes back from the value to what the call reads |
| kept | whether the call counts although nothing reads its result |
| place | how many calls were on the tape of calls without maps |
| among | where the tensor is that a module hands on in its tuple, and what stands in that |
| reached | what the gradient of a module's result reaches, of a module that runs by torch |

and those of a tensor of no map, which tracer.py fills:

| key | meaning |
|---|---|
| computed | whether a formula makes it from parameters, buffers and constants |
| unknown | why none does; None where one does |
| mask | the mask of samples that it is, or None |

and state/drawn_maps.py:

| key | meaning |
|---|---|
| drawn | whether it stands for a tensor of random numbers, which is no map to the user's code |
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..graph.network import channels_last_axes
from ..ops.traced_op import UnsupportedCallError
from ..ops.translate import cuts_gradient, result_axes, takes_apart, torch_name
from .eager_fallback import REACHED
from .guards.inputs import InputGuard
from .guards.layouts import LayoutGuard
from .meta_values import MetaValues
from .modules import LAYER_PACKAGES
from .node_ops import NodeOps
from .python.side_effects import SideEffects, has_effects, may_change_state
from .refusals import suggestion
from .source_lines import FOREIGN, source_line
from .state.functionalize import Functionalizer, base_of, forgets, parent_of, version_of
from .traced_call import TracedCall


class NodeRecords:
    """Fills the `meta` of nodes. `fault` is an error that translating a call has raised."""

    def __init__(
        self,
        call: TracedCall,
        values: MetaValues,
        ops: NodeOps,
        functionalizer: Functionalizer,
        side_effects: SideEffects,
    ) -> None:
        self._call, self._values, self._ops = call, values, ops
        self.functionalizer, self.side_effects = functionalizer, side_effects
        self.layout_guard, self.input_guard = LayoutGuard(), InputGuard()
        self.fault: Exception | None = None

    def fill(self, node: fx.Node, value: Any = None, *, beside: bool = False) -> fx.Node:
        """Fill the node's `meta` and return the node. Its value is as given, else its call's.

        A node `beside` the user's may read a tensor as it was before a write.
        """
        meta, sources = node.meta, node.all_input_nodes
        versions = [version_of(source.meta["value"]) for source in sources]
        meta["name"], meta["within"], meta["at"] = (
            self._name(node),
            self._call.path_now(),
            source_line(),
        )
        meta["call"] = meta["refusal"] = None
        meta["place"] = self.side_effects.tape.place
        meta["graded"], meta["kept"] = torch.is_grad_enabled(), has_effects(node)
        meta["value"] = self._values.of(node) if value is None else value
        meta["axes"] = channels_last_axes(_dims(meta["value"]))
        self._fill_views(node)
        pairs = list(zip(sources, versions, strict=True))
        stale = next((s for s, v in pairs if v != s.meta["version"] and not beside), None)
        written = [s for s, v in pairs if v != version_of(s.meta["value"])]
        self._note_writes(node, written)
        self._fill_op(node, stale, written)
        return node

    def _fill_views(self, node: fx.Node) -> None:
        """Note which tensor the value is a view of, and where its gradient goes."""
        meta = node.meta
        meta["view"], meta["parent"] = node, parent_of(node, meta["value"])
        meta["version"] = version_of(meta["value"])
        if takes_apart(node):  # the parts were there before what was written since
            meta["version"] = node.all_input_nodes[0].meta["version"]
        stops = REACHED in meta and not meta[REACHED].anything
        meta["stops"] = not meta["graded"] or cuts_gradient(node) or stops
        meta["shows"] = cuts_gradient(node) or not meta["graded"]
        meta["carries"] = _carries_gradient(node)

    def _fill_op(self, node: fx.Node, stale: fx.Node | None, written: Sequence[fx.Node]) -> None:
        """Note the op that the node stands for, or why there is none."""
        meta = node.meta
        try:
            _check_writes(node)
            meta["call"] = call = self._ops.of(node, stale)
            if call is not None:
                meta["axes"] = result_axes(torch_name(node), call, tuple(meta["value"].shape))
                meta["kept"] |= self.side_effects.tracks(call)
            self.side_effects.check(node, [*filter(_is_of_no_map, written)])
            self._keep_gradient(node, _overwritten_node(node, written))
        except UnsupportedCallError as reason:
            meta["refusal"] = self._call.refusal(f"{reason}{suggestion(str(reason))}")
            meta["kept"] |= may_change_state(node, self._call.module) or _may_write(node, written)
        except FOREIGN as error:
            self.fault = error
            raise

    def _name(self, node: fx.Node) -> str:
        """A layer's path; for a call in a module of the user's, path and function."""
        if node.op in ("placeholder", "get_attr"):
            return str(node.target)
        path, function = self._call.path_now(), torch_name(node).rstrip("_")
        if node.op == "call_module":
            return path or self._call.title
        if path and type(self._call.module).__module__.startswith(LAYER_PACKAGES):
            return path
        return f"{path}.{function}" if path else function

    def _note_writes(self, node: fx.Node, written: Sequence[fx.Node]) -> None:
        """Note which maps a call has written, and the node of their new value."""
        self.layout_guard.note(node)
        self.input_guard.note(node)
        self.layout_guard.wrote(written)
        if torch_name(node) == "detach_":
            self.functionalizer.detach(node.all_input_nodes[0], node)
        target = _overwritten_node(node, written)
        if target is None:
            for source in written:
                self.functionalizer.lose(source, node)
        elif target.op != "get_attr":
            self.functionalizer.wrote(node, target)

    def _keep_gradient(self, node: fx.Node, target: fx.Node | None) -> None:
        """A map that a call without gradients has written keeps its former gradient."""
        if target is not None and target.meta["carries"] and not node.meta["graded"]:
            self.functionalizer.keep_gradient(node, target)


def _carries_gradient(node: fx.Node) -> bool:
    if node.op in ("placeholder", "get_attr"):
        return bool(node.meta["value"].requires_grad)
    if REACHED in node.meta:
        return bool(node.meta[REACHED].anything)
    return not node.meta["stops"] and any(s.meta["carries"] for s in node.all_input_nodes)


def _check_writes(node: fx.Node) -> None:
    """Refuse writes after which torch's gradients differ from those of the new values."""
    carries = any(source.meta["carries"] for source in node.all_input_nodes)
    if node.kwargs.get("out") is not None and carries and node.meta["graded"]:
        raise UnsupportedCallError(f"{torch_name(node)} with out= of maps that have a gradient")
    if node.meta["graded"] and forgets(node):
        raise UnsupportedCallError(
            "copy_ over a whole map that has a gradient, of what is not made of it (use that)"
        )


def _may_write(node: fx.Node, written: Sequence[fx.Node]) -> bool:
    """Whether a refused call may write a parameter, a buffer or another tensor of no map."""
    in_place = torch_name(node).endswith("_") and node.args
    targets = [*written, *(node.args[:1] if in_place else ()), node.kwargs.get("out")]
    return any(isinstance(each, fx.Node) and _is_of_no_map(each) for each in targets)


def _is_of_no_map(node: fx.Node) -> bool:
    base = base_of(node)
    return base.op == "get_attr" or bool(base.meta.get("drawn"))


def _overwritten_node(node: fx.Node, written: Sequence[fx.Node]) -> fx.Node | None:
    value = node.meta["value"]
    return next((source for source in written if source.meta["value"] is value), None)


def _dims(value: Any) -> int:
    return value.dim() if isinstance(value, Tensor) else 0
