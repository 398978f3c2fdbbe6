"""Which gradients a backward has, and checks that hooks and writes do not change them."""

from collections.abc import Iterable, Mapping, Sequence
from weakref import ReferenceType

import torch
from torch import Tensor

from ..errors import EngineError, InputError
from ..graph import Network
from ..trace.state.functionalize import version_of


def reached_from(network: Network, outputs: Iterable[str]) -> frozenset[str]:
    """The parameters and inputs to which gradients of these outputs go back."""
    reached: set[str] = set(outputs)
    for op in reversed(network.ops):
        if op.output in reached and op.output not in network.detached:
            reached.update(op.reached)
    return frozenset(reached)


def with_gradients(network: Network, grads: Sequence[Tensor | None]) -> frozenset[str] | None:
    """The names that get a gradient if only some outputs have one; None if all have."""
    pairs = list(zip(network.outputs, grads, strict=True))
    if all(grad is not None for _, grad in pairs):
        return None
    return reached_from(network, (name for name, grad in pairs if grad is not None))


def inner_outputs(network: Network) -> frozenset[str]:
    """The outputs of which other outputs are made, so that gradients go back through them."""
    outputs = network.outputs
    makers = (op for op in network.ops if op.output in outputs)
    read = (name for op in makers if op.output not in network.detached for name in op.inputs)
    return reached_from(network, read).intersection(outputs)


def check_outputs(network: Network, outputs: Sequence[ReferenceType[Tensor]]) -> None:
    """Raise InputError for an output with hooks of which other outputs are made.

    `outputs` refer to the tensors that the caller was given, as far as they are still there.
    """
    given = enumerate(reference() for reference in outputs)
    hooked = [place for place, y in given if y is not None and _wants_gradient(y)]
    inner = inner_outputs(network) if hooked else frozenset()
    for place in hooked:
        if network.outputs[place] in inner:
            raise InputError(
                f"output {place} of the virtualized network has hooks, or retains its gradient, and"
                " other outputs are made of it: what they add to its gradient stays inside the"
                " step; remove the hooks, or virtualize what follows the output apart"
            )


def _wants_gradient(output: Tensor) -> bool:
    return bool(output._backward_hooks) or output.retains_grad


def versions_of(network: Network, params: Mapping[str, Tensor]) -> dict[str, int]:
    """Torch's counts of writes to the parameters that a step reads."""
    return {name: version_of(params[name]) for name in network.params if name in params}


def check_saving() -> None:
    """Raise EngineError in a region of a user's hooks on saved tensors.

    Torch calls the innermost hooks alone. Its own hooks, of checkpoints and save_on_cpu, return the
    same values.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and not str(getattr(hooks[0], "__module__", "")).startswith("torch."):
        raise EngineError(
            f"a region of saved_tensors_hooks is around this step, which keeps what its backward"
            f" reads by its plan and would not call {getattr(hooks[0], '__qualname__', hooks[0])};"
            " call the network outside the region, or use it without an engine"
        )


def check_no_hooks(params: Mapping[str, Tensor]) -> None:
    """Raise InputError for a parameter with hooks on its gradient."""
    for name, param in params.items():
        if param._backward_hooks or param._post_accumulate_grad_hooks:
            raise InputError(
                f"parameter {name} has hooks on its gradient, which a planned step would not"
                " call; remove them, or train in a loop of your own (virtualize)"
            )


def check_unchanged(
    network: Network, params: Mapping[str, Tensor], versions: Mapping[str, int]
) -> None:
    """Raise EngineError for a parameter that was written since `versions` were taken."""
    now = versions_of(network, params)
    changed = [name for name, version in versions.items() if now.get(name, version) != version]
    if changed:
        raise EngineError(
            f"parameter {changed[0]} was changed in place after the forward whose backward this is;"
            " call backward before the optimizer's step, or the forward again after it"
        )
