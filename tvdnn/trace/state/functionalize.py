"""Functionalization: an in-place operation makes a new value, which all aliases read.

The meta tensors of traced values share storages as torch's own tensors do, and torch counts the
writes to each storage. A value whose storage has been written since the value was recorded is
stale. It is made again when it is next read. Each write is carried back through its views to a new
value of the tensor that owns the storage (the base). Then the views that lead from the base to the
stale value are taken again.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from ...functional import straight_through
from ...ops.translate import cuts_gradient
from ..source_lines import location_text

Record = Callable[..., fx.Node]  # (kind, target, args, kwargs, value): a node beside the user's


@dataclass(slots=True)
class _Storage:
    """The writes to a storage."""

    base: fx.Node  # the value of the tensor that owns the storage
    last: fx.Node  # the value that was written last
    # Values that `base` does not contain yet, each with the alias through which it was written.
    written: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)
    lost: bool = False  # whether a write could not be followed


class NoInverseError(Exception):
    """A write through a view cannot be carried back to the viewed tensor."""


class Functionalizer:
    """Makes stale values again; `record` makes a node.

    Nodes keep in `meta`:

    | key | meaning |
    |---|---|
    | value | the tensor of the meta device, or several |
    | version | torch's count of writes when the node was recorded |
    | parent | the node whose storage the value shares; None where the value owns its storage |
    | view | the node that took the view: itself, or after a write through a view that view's |
    | carries | whether a gradient flows back from the value |
    | shows | whether torch counts the writes through a view without a gradient |
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._storages: dict[int, _Storage] = {}
        self._detached: dict[int, fx.Node] = {}

    def fresh(self, node: fx.Node) -> fx.Node:
        """The node of the present value of `node`'s tensor: `node` where nothing was written.

        A stale node is returned where the write cannot be followed.
        """
        node = node.meta.get("keeps", node)
        node = self._detached.get(id(node.meta["value"]), node)
        if not is_stale(node):
            return node
        state = self._storages.get(storage_of(node.meta["value"]) or 0)
        if state is None or state.lost:
            return node
        if state.last.meta["value"] is node.meta["value"]:
            return state.last
        again: fx.Node
        version, again = node.meta.get("again", (None, node))
        if version == version_of(node.meta["value"]):
            return again
        try:
            again = self._taken_again(node, self._base_now(state))
        except NoInverseError:
            state.lost = True
            return node
        node.meta["again"] = version_of(node.meta["value"]), again
        return again

    def wrote(self, node: fx.Node, through: fx.Node) -> None:
        """Note that `node` is the new value of the tensor of `through`."""
        key = storage_of(through.meta["value"]) or 0
        state = self._storages.get(key)
        if state is None:
            state = self._storages[key] = _Storage(base_of(through), node)
        state.last = node
        node.meta["parent"], node.meta["view"] = through.meta["parent"], through.meta["view"]
        state.written.append((node, through))

    def keep_gradient(self, node: fx.Node, through: fx.Node) -> None:
        """Note that `node`, the last write, changes values alone, not the gradient of `through`."""
        state = self._storages[storage_of(through.meta["value"]) or 0]
        kept = self._straight_through(through, node, through.meta["value"])
        kept.meta["parent"], kept.meta["view"] = node.meta["parent"], node.meta["view"]
        state.last, state.written[-1] = kept, (kept, through)
        node.meta["keeps"] = kept  # by which the result of the call is read

    def lose(self, through: fx.Node, node: fx.Node) -> None:
        """Note that `node` wrote the tensor of `through` with a value that is not known."""
        key = storage_of(through.meta["value"]) or 0
        state = self._storages.setdefault(key, _Storage(base_of(through), node))
        state.last, state.lost = node, True

    def line_of_write(self, node: fx.Node) -> str:
        """The line that wrote the storage of a node's value last, as " at file:line"."""
        state = self._storages.get(storage_of(node.meta["value"]) or 0)
        return "" if state is None else location_text(state.last.meta["at"])

    def detach(self, through: fx.Node, node: fx.Node) -> None:
        """Note that the value of `through` is that of `node` from now on, as by detach_."""
        self._detached[id(through.meta["value"])] = node

    def _base_now(self, state: _Storage) -> fx.Node:
        """The value of the base after all writes."""
        while state.written:
            written, through = state.written[0]
            state.base = self._carried_back(through, written, state.base)
            state.written.pop(0)
        return state.base

    def _carried_back(self, through: fx.Node, written: fx.Node, base: fx.Node) -> fx.Node:
        """The value of the base after a write, by its value before."""
        parent = through.meta["parent"]
        if parent is None:
            return written
        before, whole = self._taken_again(parent, base), parent.meta["value"]
        inside = self._put_back(written, through.meta["value"], before, whole)
        if through.meta["view"].meta["stops"] and (
            parent.meta["carries"] or written.meta["carries"]
        ):
            inside = self._behind(through, written, before, inside, whole)
        return self._carried_back(parent, inside, base)

    def _behind(
        self, through: fx.Node, written: fx.Node, before: fx.Node, inside: fx.Node, whole: Tensor
    ) -> fx.Node:
        """The tensor that an alias without a gradient views: its values change, its gradient not.

        Torch forgets a write through `data`, and allows no write with gradients through a view that
        was taken without. A gradient of the written value would flow through the alias alone.
        """
        view = through.meta["view"]
        allowed = cuts_gradient(view) or not written.meta["graded"]
        if not view.meta["shows"] or not allowed or written.meta["carries"]:
            raise NoInverseError
        return self._straight_through(before, inside, whole)

    def _straight_through(self, before: fx.Node, values: fx.Node, whole: Tensor) -> fx.Node:
        cut = self._record("call_method", "detach", (values,), {}, whole)
        return self._record("call_function", straight_through, (before, cut), {}, whole)

    def _put_back(self, new: fx.Node, view: Tensor, before: fx.Node, whole: Tensor) -> fx.Node:
        """The value `before` with `new` in the place that `view` has in the tensor `whole`."""
        if _places(view) == _places(whole):
            return new
        if view.numel() == whole.numel():
            order = _order_between(view, whole)
            if order is not None:
                return self._record("call_method", "permute", (new, order), {}, whole)
            if _is_in_order(view, whole):
                return self._record("call_method", "reshape", (new, whole.shape), {}, whole)
            raise NoInverseError
        dim, start, length = _slice_between(view, whole)
        if view.dim() < whole.dim():
            new = self._record("call_method", "unsqueeze", (new, dim), {}, None)
        elif view.shape[:dim] + view.shape[dim + 1 :] != whole.shape[:dim] + whole.shape[dim + 1 :]:
            inner = self._record(
                "call_function", torch.narrow, (before, dim, start, length), {}, None
            )
            new = self._put_back(new, view, inner, whole.narrow(dim, start, length))
        return self._joined(new, before, whole, (dim, start, length))

    def _joined(
        self, new: fx.Node, before: fx.Node, whole: Tensor, place: tuple[int, int, int]
    ) -> fx.Node:
        """The value `before` with `new` in the range (dimension, start, length) `place`."""
        dim, start, length = place
        behind = start + length
        ranges = ((0, start), (behind, whole.shape[dim] - behind))
        ahead, after = (
            [self._record("call_function", torch.narrow, (before, dim, *each), {}, None)]
            if each[1]
            else []
            for each in ranges
        )
        return self._record("call_function", torch.cat, ((*ahead, new, *after), dim), {}, whole)

    def _taken_again(self, node: fx.Node, base: fx.Node) -> fx.Node:
        """The view of a node, taken again of the present value of the base."""
        view, value = node.meta["view"], node.meta["value"]
        parent = view.meta["parent"]
        if parent is None:
            return base
        source = self._taken_again(parent, base)
        again = self._parts_again(view, parent, source)
        args, kwargs = map_arg((view.args, view.kwargs), lambda each: again.get(each, each))
        graded = view.meta["graded"]
        made = self._record(str(view.op), view.target, args, kwargs, value, graded=graded)
        made.meta["parent"] = source
        return made

    def _parts_again(
        self, node: fx.Node, parent: fx.Node, source: fx.Node
    ) -> dict[fx.Node, fx.Node]:
        """The nodes to read in the place of the parent and of tuples of the parent's parts."""
        again = {parent: source}
        for each in node.all_input_nodes:
            if isinstance(each.meta["value"], (tuple, list)):
                args, kwargs = map_arg((each.args, each.kwargs), lambda n: again.get(n, n))
                parts = each.meta["value"]
                again[each] = self._record(str(each.op), each.target, args, kwargs, parts)
        return again


def version_of(value: Any) -> int:
    """Torch's count of writes to the storage of a tensor, or of the first of several."""
    if isinstance(value, (tuple, list)):
        return next((version_of(each) for each in value if isinstance(each, Tensor)), 0)
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


def is_stale(node: fx.Node) -> bool:
    return version_of(node.meta["value"]) != int(node.meta["version"])


def storage_of(value: Any) -> int | None:
    """The number of a tensor's storage; None for a value that is no tensor."""
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def base_of(node: fx.Node) -> fx.Node:
    """The node that owns the storage of a node's value."""
    while node.meta["parent"] is not None:
        node = node.meta["parent"]
    return node


def parent_of(node: fx.Node, value: Any) -> fx.Node | None:
    """The node among those that a call reads whose storage the result shares."""
    storage = storage_of(value)
    for source in _sources(node) if storage is not None else ():
        if storage_of(source.meta["value"]) == storage:
            return source
    return None


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that a node reads; for a part of a split map, the map."""
    for source in node.all_input_nodes:
        if isinstance(source.meta["value"], (tuple, list)) and node.target is operator.getitem:
            yield from source.all_input_nodes
        else:
            yield source


def forgets(node: fx.Node) -> bool:
    """Whether a call copies over a whole map with a gradient a value that is not made of it.

    Torch's gradients of the map's sources are then zeros, and not None.
    """
    if node.op != "call_method" or node.target != "copy_" or not isinstance(node.args[0], fx.Node):
        return False
    target = node.args[0]
    root = base_of(target)
    whole = target.meta["value"].numel() == root.meta["value"].numel()
    if not whole or not root.meta["carries"] or target.meta["view"].meta["stops"]:
        return False
    waiting, seen = node.all_input_nodes[1:], set[fx.Node]()
    while waiting:
        source = waiting.pop()
        if source in (root, target):
            return False
        if source not in seen:
            seen.add(source)
            waiting += source.all_input_nodes
    return True


def _places(tensor: Tensor) -> tuple[Any, ...]:
    """Shape, strides (0 for dimensions of one element) and offset of a tensor."""
    return tensor.shape, _steps(tensor), tensor.storage_offset()


def _steps(tensor: Tensor) -> tuple[int, ...]:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride if size > 1 else 0 for size, stride in sizes)


def _is_in_order(view: Tensor, whole: Tensor) -> bool:
    """Whether the view has the elements of the whole in their order."""
    try:
        same = whole.view(view.shape)
    except RuntimeError:
        return False
    return _places(same) == _places(view)


def _order_between(view: Tensor, whole: Tensor) -> tuple[int, ...] | None:
    """The order of the view's dimensions that makes it the whole; None where there is none."""
    if view.dim() != whole.dim() or view.storage_offset() != whole.storage_offset():
        return None
    left = list(range(view.dim()))
    order: list[int] = []
    for wanted in zip(whole.shape, _steps(whole), strict=True):
        found = [dim for dim in left if (view.shape[dim], _steps(view)[dim]) == wanted]
        if not found:
            return None
        order.append(found[0])
        left.remove(found[0])
    return tuple(order)


def _slice_between(view: Tensor, whole: Tensor) -> tuple[int, int, int]:
    """The first dimension of which the view has a range, where that starts, and its length."""
    offset = int(view.storage_offset()) - int(whole.storage_offset())
    if view.dim() == whole.dim():
        for dim, (size, length) in enumerate(zip(whole.shape, view.shape, strict=True)):
            if size != length and _have_equal_steps(view, whole):
                start = _start(offset, whole, dim)
                return dim, start, length
    for dim in range(whole.dim()) if view.dim() == whole.dim() - 1 else ():
        start = _start(offset, whole, dim)
        if _places(whole.select(dim, start)) == _places(view):
            return dim, start, 1
    raise NoInverseError


def _have_equal_steps(view: Tensor, whole: Tensor) -> bool:
    steps: Sequence[tuple[int, int, int]] = list(
        zip(view.shape, view.stride(), whole.stride(), strict=True)
    )
    return all(size < 2 or mine == theirs for size, mine, theirs in steps)


def _start(offset: int, whole: Tensor, dim: int) -> int:
    """The index along `dim` of the element `offset` elements after the first."""
    stride = whole.stride(dim)
    return offset // stride % whole.shape[dim] if stride else 0
