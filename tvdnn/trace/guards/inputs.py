"""Guards on inputs: attributes beside sizes, such as strides, that a forward asks for.

A trace answers as for new contiguous tensors. Each later call checks its inputs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from torch import Tensor, fx

from ...errors import UnsupportedOpError
from ...graph import Network
from ..source_lines import source_location
from ..state.functionalize import storage_of
from .layouts import check_layout

STRIDES: Final = "strides"
BY_STRIDES: Final = frozenset({"stride", "is_contiguous", "storage_offset", "_is_view", "_base"})
COPY: Final = "pass a copy (.detach().clone())"
CURES: Final[Mapping[str, str]] = {
    STRIDES: "pass contiguous inputs (.contiguous())",
    "requires_grad": "pass inputs that require no gradient (.detach())",
}


class InputGuard:
    """Notes the attributes of inputs that a forward asks for.

    `lines` are the first lines that ask, as " at file:line", by attribute. Strides of a map that is
    no input depend on the strides of the inputs.
    """

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self._inputs: set[int | None] = set()  # storages

    def note(self, node: fx.Node) -> None:
        """Note an input."""
        if node.op == "placeholder":
            self._inputs.add(storage_of(node.meta["value"]))

    def note_question(self, node: fx.Node, name: str) -> None:
        """Note that the line which runs asks for an attribute of the tensor of a node."""
        if name in BY_STRIDES:
            self.lines.setdefault(STRIDES, source_location())
        if name in _DIFFERS and storage_of(node.meta["value"]) in self._inputs:
            self.lines.setdefault(name, source_location())


def check_inputs(
    network: Network, inputs: Sequence[Tensor], graded: Collection[int] = frozenset()
) -> None:
    """Raise UnsupportedOpError for inputs on which the traced forward would take another course.

    Their layout, or an attribute that forward asks for, differs from that in the trace. `graded`
    are the numbers of the inputs that required a gradient in the trace.
    """
    check_layout(network, inputs)
    for name, line in network.asked.items():
        if any(_DIFFERS[name](x, number in graded) for number, x in enumerate(inputs)):
            raise UnsupportedOpError(
                f"the network asks for {name} of its maps{line}, which a trace answers as for new"
                f" contiguous inputs, and these are others; {CURES.get(name, COPY)}"
            )


def _strides_differ(x: Tensor, graded: bool) -> bool:
    """Whether a tensor has other strides than a new contiguous one of its shape."""
    step = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if stride != step:
            return True
        step *= max(size, 1)
    return False


_DIFFERS: Final[Mapping[str, Callable[[Tensor, bool], bool]]] = {
    STRIDES: _strides_differ,
    "storage_offset": lambda x, graded: bool(x.storage_offset() != 0),
    "_is_view": lambda x, graded: x._is_view(),
    "_base": lambda x, graded: x._is_view(),
    "_version": lambda x, graded: not x.is_inference() and x._version != 0,
    "is_inference": lambda x, graded: x.is_inference(),
    "is_leaf": lambda x, graded: not x.is_leaf,
    "grad_fn": lambda x, graded: x.grad_fn is not None,
    "grad": lambda x, graded: x.is_leaf and x.grad is not None,
    "requires_grad": lambda x, graded: x.requires_grad and not graded,
}
