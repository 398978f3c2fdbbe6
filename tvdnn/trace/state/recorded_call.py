"""The record of one of torch's calls on tensors that come from no map."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from ..source_lines import Line, source_line
from .meta_answers import torch_name_of


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of torch, recorded when it has run on meta copies."""

    function: Callable[..., Any]
    given: tuple[Any, ...]  # the leaves of the arguments
    form: TreeSpec  # how the leaves make (args, kwargs)
    made: tuple[Any, ...]  # the leaves of the result
    written: tuple[Tensor, ...]  # whose elements the call has written
    formed: tuple[Tensor, ...]  # of which it has changed the type, shape, strides or storage
    graded: bool  # whether torch recorded gradients
    draws: bool  # whether it drew random numbers
    within: str  # the path of the module that made the call
    at: Line | None  # the line that made the call

    @property
    def name(self) -> str:
        return torch_name_of(self.function)

    @property
    def arguments(self) -> Any:
        """The arguments of the call, as (args, kwargs)."""
        return self.arguments_of(self.given)

    def arguments_of(self, leaves: Sequence[Any]) -> Any:
        """Arguments with other leaves, as (args, kwargs)."""
        return tree_unflatten(list(leaves), self.form)


def recorded_call(
    function: Callable[..., Any],
    given: tuple[tuple[Any, ...], Any],
    result: Any,
    *,
    written: Sequence[Tensor],
    formed: Sequence[Tensor],
    draws: bool,
    within: str,
) -> RecordedCall:
    """The record of a call that has just returned `result`; `given` is (args, kwargs)."""
    leaves, form = tree_flatten(given)
    return RecordedCall(
        function,
        tuple(leaves),
        form,
        tuple(tree_leaves(result)),
        tuple(written),
        tuple(formed),
        torch.is_grad_enabled(),
        draws,
        within,
        source_line(),
    )
