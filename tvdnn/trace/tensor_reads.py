"""Nodes that read tensors which come from no map: parameters, constants, and random numbers."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, fx

from ..graph.network import channels_last_axes
from ..ops.traced_op import UNNAMED
from .state.drawn_maps import NoDrawnMapError
from .state.drawn_masks import Mask
from .state.formula_builder import NoFormulaError
from .state.recorded_calls import RecordedCalls
from .traced_call import TracedCall


class TensorReads:
    """Makes the nodes that read tensors which come from no map.

    `map_node` is the first input, which random numbers are drawn beside.
    """

    def __init__(
        self,
        call: TracedCall,
        recorded: RecordedCalls,
        create_node: Callable[..., fx.Node],  # (kind, target, args, kwargs)
        proxy_of: Callable[[fx.Node], fx.Proxy],
    ) -> None:
        self._call, self._recorded = call, recorded
        self._create_node, self._proxy_of = create_node, proxy_of
        self.map_node: fx.Node | None = None

    def node_of(self, a: Tensor) -> fx.Node:
        """A node that reads the tensor by its name; of random numbers the op that draws them."""
        copies = self._call.meta_copies
        viewed = self._call.evaluated(partial(copies.viewed, a))
        if viewed is not None:
            node = self._create_node("get_attr", viewed, (), {})
            node.meta["value"], node.meta["base"] = a, node.meta["value"]
            node.meta["axes"] = channels_last_axes(a.dim())
            return node
        if (name := copies.names.get(id(a))) is not None:
            return self._create_node("get_attr", name, (), {})
        return self._of_other(a)

    def _of_other(self, a: Tensor) -> fx.Node:
        """A node that reads a tensor which is neither a parameter nor a buffer."""
        try:
            return self._named(a, self._recorded.name_of(a))
        except NoFormulaError as reason:
            unknown, mask = str(reason), self._recorded.mask_of(a)
        if mask is not None and _is_of_samples(a):
            return self._named(a, None, unknown, mask)
        try:
            drawn = self._drawn(a)
        except NoDrawnMapError as why:
            return self._named(a, None, f"{unknown}: {why}", mask)
        return drawn or self._named(a, None, unknown, mask)

    def _drawn(self, a: Tensor) -> fx.Node | None:
        """The node of random numbers for each sample; None of another tensor."""
        if self.map_node is None:
            return None
        return self._recorded.drawn(a, self._proxy_of(self.map_node))

    def _named(
        self, a: Tensor, name: str | None, unknown: str | None = None, mask: Mask | None = None
    ) -> fx.Node:
        """A node of this name, or of none, and why no formula makes the tensor."""
        if name is None:
            stand_in = torch.empty_like(a, device="meta")
            self._call.meta_copies.tensors.setdefault(f"{UNNAMED}{id(a)}", stand_in)
        node = self._create_node("get_attr", name or f"{UNNAMED}{id(a)}", (), {})
        node.meta |= {"computed": name is not None, "unknown": unknown, "mask": mask}
        return node


def _is_of_samples(mask: Tensor) -> bool:
    """Whether a mask has one number for each sample."""
    return mask.dim() > 0 and mask.numel() == len(mask)
