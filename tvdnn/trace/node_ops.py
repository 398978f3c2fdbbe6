"""From the node of a traced call to the op that the call stands for."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, fx

from ..ops.arithmetic_translator import mul
from ..ops.dropout import masked
from ..ops.traced_op import PerSampleError, TracedOp, UnsupportedCallError, shape_of
from ..ops.translate import takes_apart, torch_name, translated, translator_of
from .eager_fallback import eager_call
from .meta_values import MetaValues
from .modules import module_refusal
from .python.side_effects import SideEffects
from .state.functionalize import Functionalizer
from .traced_call import TracedCall

CreateNode = Callable[..., fx.Node]  # (kind, target, args, kwargs)


class NodeOps:
    """Finds the ops of nodes. The submodules at the paths `eager_paths` run by torch's own code."""

    def __init__(
        self,
        call: TracedCall,
        values: MetaValues,
        side_effects: SideEffects,
        functionalizer: Functionalizer,
        create_node: CreateNode,
        eager_paths: frozenset[str],
    ) -> None:
        self._call, self._values, self._side_effects = call, values, side_effects
        self._functionalizer, self._create_node, self._eager_paths = (
            functionalizer,
            create_node,
            eager_paths,
        )

    def of(self, node: fx.Node, stale: fx.Node | None) -> TracedOp | None:
        """The op that a node stands for; None for a node that is no op.

        `stale` is a node that the call reads and whose tensor was written since. Raises
        UnsupportedCallError where tvdnn has no such op.
        """
        call = self._found(node, stale)
        return None if call is None else self._counted(call)

    def _found(self, node: fx.Node, stale: fx.Node | None) -> TracedOp | None:
        if stale is not None:
            raise UnsupportedCallError(
                f"{torch_name(node)} reads {stale.meta['name']} after an in-place operation, which"
                f" cannot be followed{self._functionalizer.line_of_write(stale)}"
            )
        if node.op in ("placeholder", "get_attr", "output") or takes_apart(node):
            return None
        unknown = [each for each in node.all_input_nodes if each.meta.get("unknown")]
        if unknown:
            return self._masked(node, unknown[0])
        if node.op == "call_module" and self._call.path_now() in self._eager_paths:
            return self._eager_call(node)
        if node.op == "call_module":
            raise UnsupportedCallError(module_refusal(self._call.module) or "")
        translator = translator_of(node)
        if translator is None:
            raise UnsupportedCallError(torch_name(node))
        if any(_is_number(each.meta["value"]) for each in (node, *node.all_input_nodes)):
            raise UnsupportedCallError(f"{torch_name(node)} of a number that a call on maps yields")
        return None if node.meta["value"] is None else self._translated(node, translator)

    def _translated(
        self, node: fx.Node, translator: Callable[..., TracedOp | None]
    ) -> TracedOp | None:
        """The op of a supported call.

        A view of a parameter that the op does not take becomes a computed parameter, and a
        constant that is alike for all samples that of one sample.
        """
        recorded, reads = self._side_effects.recorded, node.all_input_nodes
        try:
            return translated(node, translator)
        except PerSampleError:
            constants = [each for each in reads if _has_samples(each, node)]
            if not constants or not all(map(recorded.is_alike, constants)):
                raise
        except UnsupportedCallError:
            views = [each for each in reads if "base" in each.meta]
            if not views or not all(map(recorded.computes, views)):
                raise
        return translated(node, translator)

    def _masked(self, node: fx.Node, operand: fx.Node) -> TracedOp:
        """The op of a map times a mask of samples that the forward draws. Raises for other calls.

        One op draws a mask: a second one would draw another.
        """
        mask, maps = operand.meta.get("mask"), [x for x in node.all_input_nodes if x is not operand]
        if mask is None or not _scales_samples(node, operand, maps):
            raise UnsupportedCallError(f"{torch_name(node)} of {operand.meta['unknown']}")
        if not self._side_effects.recorded.takes(mask):
            raise UnsupportedCallError(
                f"{torch_name(node)} by a mask that another product reads already"
            )
        return masked(shape_of(node), maps[0], mask.keep, mask.value)

    def _counted(self, call: TracedOp) -> TracedOp:
        """A normalization's call with the counter of batches that the module increased itself."""
        name = self._side_effects.counter_of(call)
        if name is None:
            return call
        counter = self._create_node("get_attr", name, (), {})
        return replace(call, state=(*call.state[:2], counter))

    def _eager_call(self, node: fx.Node) -> TracedOp:
        """The op of a submodule that runs as it is: what it reads, its parameters and itself."""
        module, buffers = self._call.module, dict(self._call.module.named_buffers())
        params = dict(module.named_parameters())
        names = () if self._values.effects else self._values.tracked
        tracked = {name: buffers[name] for name in names}
        attrs = {"module": module, "names": tuple(params), "tracked": tuple(tracked)}
        state = tuple(map(self._read, tracked.values()))
        for each in state:
            if self._call.meta_copies.is_recast(str(each.target)):
                raise UnsupportedCallError(
                    f"{type(module).__name__} that changes {each.target}, which is neither float32"
                    " nor of whole numbers"
                )
        read = tuple(map(self._read, params.values()))
        return eager_call(node, read, state, attrs, self._values.effects)

    def _read(self, copy: Tensor) -> fx.Node:
        """A node that reads a parameter or buffer, of which this is the meta copy."""
        name = self._call.meta_copies.names[id(copy)]
        return self._create_node("get_attr", name, (), {})


def _has_samples(constant: fx.Node, node: fx.Node) -> bool:
    """Whether a computed tensor has as many values as a call's result has samples."""
    shape, out = (tuple(getattr(each.meta["value"], "shape", ())) for each in (constant, node))
    return bool(constant.meta.get("computed")) and len(shape) == len(out) and shape[0] == out[0] > 1


def _scales_samples(node: fx.Node, operand: fx.Node, maps: Sequence[fx.Node]) -> bool:
    """Whether a call multiplies one map by an operand with a number for each sample."""
    if translator_of(node) is not mul or len(maps) != 1 or node.kwargs:
        return False
    if not all(isinstance(each.meta["value"], Tensor) for each in (node, operand, *maps)):
        return False
    out = shape_of(node)
    samples = (*out[:1], *(1,) * (len(out) - 1))
    return len(out) > 1 and shape_of(operand) == samples and shape_of(maps[0]) == out


def _is_number(value: Any) -> bool:
    return value is not None and not isinstance(value, (Tensor, tuple, list))
