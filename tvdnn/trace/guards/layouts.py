"""The guard on the layout of inputs: by it torch copies a map or views it, before a write."""

from collections.abc import Iterable, Sequence

from torch import Tensor, fx

from ...errors import UnsupportedOpError
from ...graph import Network
from ...ops.translate import torch_name
from ..state.functionalize import storage_of

# Calls that return a view of their input, or a copy where its layout allows no view.
MAY_COPY = frozenset({"contiguous", "flatten", "ravel", "reshape", "reshape_as"})


class LayoutGuard:
    """Finds reads that see a write in one layout of the inputs and not in another.

    A network is traced on contiguous inputs. `found` is the first such line, as " at file:line": it
    reads the source of a call that may copy after a write to the result, or the other way round.
    """

    def __init__(self) -> None:
        self.found = ""
        self._pairs: list[tuple[int, int]] = []  # storages of what calls read and of their results
        self._changed: dict[int, Tensor | None] = {}  # by storage: the tensor that was written

    def note(self, node: fx.Node) -> None:
        """Note a call that may copy."""
        value, sources = node.meta["value"], node.all_input_nodes
        if torch_name(node) not in MAY_COPY or not isinstance(value, Tensor) or not sources:
            return
        pair = storage_of(sources[0].meta["value"]), storage_of(value)
        if pair[0] is not None and pair[1] is not None:
            self._pairs.append((pair[0], pair[1]))

    def wrote(self, targets: Sequence[fx.Node]) -> None:
        """Note that a call has written the tensors of these nodes."""
        for tensor in (target.meta["value"] for target in targets):
            storage = storage_of(tensor)
            for one, other in self._pairs:
                if storage == one == other:
                    self._changed[other] = tensor
                elif storage in (one, other):
                    self._changed[other if storage == one else one] = None

    def tells(self, node: fx.Node) -> bool:
        """Whether the value of a node's tensor depends on the layout of the inputs."""
        value = node.meta["value"]
        storage = storage_of(value)
        return storage in self._changed and self._changed[storage] is not value


def check_layout(network: Network, inputs: Iterable[Tensor]) -> None:
    """Raise UnsupportedOpError for inputs in another layout, if the result depends on it."""
    if network.layout_read and not all(x.is_contiguous() for x in inputs):
        raise UnsupportedOpError(
            f"the network reads{network.layout_read} what was written in place behind a reshape or"
            " a flatten, which copies or not by the layout of its inputs; pass contiguous inputs"
            " (.contiguous()), or flatten a .clone()"
        )
