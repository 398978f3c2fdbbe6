"""What may be an opaque op: a submodule that runs by torch's own code and autograd, as it is."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode

from ..graph.network import channels_last_axes
from ..ops.traced_op import TracedOp, UnsupportedCallError, axes_of


class Effects(TorchDispatchMode):
    """Notes what a call of `module` does that a second one would not do alike."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module = module
        self._random: str | None = None
        self._before: dict[str, tuple[int, int]] = {}
        self._after: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> "Effects":
        self._before = self._buffers()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self._after = self._buffers()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._random = str(func)
        return func(*args, **(kwargs or {}))

    def found(self) -> str | None:
        """The effect in words; None where there is none."""
        if self._random is not None:
            return f"draws random numbers ({self._random})"
        changed = [name for name in self._after if self._after[name] != self._before.get(name)]
        return f"changes its buffer {changed[0]}" if changed else None

    def _buffers(self) -> dict[str, tuple[int, int]]:
        return {name: (id(b), b._version) for name, b in self._module.named_buffers()}


def opaque_call(
    node: Node, params: tuple[Node, ...], attrs: Mapping[str, Any], effects: str | None
) -> TracedOp:
    """The op of a submodule's call on one tensor that yields one.

    Its forward runs again in backward, so it may have no effects. Its settings add torch's shapes
    of what it takes and makes, and where the dimensions of these are stored.
    """
    module = type(attrs["module"]).__name__
    inputs = [*node.args, *node.kwargs.values()]
    source = inputs[0] if len(inputs) == 1 else None
    if not isinstance(source, Node):
        raise UnsupportedCallError(f"{module} of {len(inputs)} arguments (opaque ones take one)")
    value, result = source.meta["value"], node.meta["value"]
    if not isinstance(value, Tensor) or not isinstance(result, Tensor):
        raise UnsupportedCallError(f"{module} that makes no tensor whose shape is known")
    if not result.is_floating_point() or result.shape[:1] != value.shape[:1]:
        raise UnsupportedCallError(f"{module} that makes no floating-point tensor of the batch")
    if effects is not None:
        raise UnsupportedCallError(f"{module} that {effects}, which would happen a second time")
    axes = channels_last_axes(4) if result.dim() == 4 else tuple(range(result.dim()))
    takes = {"takes": tuple(value.shape), "takes_axes": axes_of(source)}
    makes = {"makes": tuple(result.shape), "makes_axes": axes}
    return TracedOp("opaque", (source,), params, {**attrs, **takes, **makes}, axes)
