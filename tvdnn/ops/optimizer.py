"""Updates of parameters by their gradients, and sums of gradients for a later update.

A gradient arrives as partial sums, or whole. In a fused update partial sums go straight into the
update, and the gradient never exists.
"""

from typing import Any

from ..graph import Op
from ..kernels.optim.update import TENSORS
from ..units import KIB
from .buckets import add_whole_gradient
from .builder import Builder, whole
from .operator import Launch, Operator, launches

PARAM = "parameter"
WAITS_NBYTES = 64 * KIB  # of a parameter that waits for others to share a launch, at most


def flush_gradients(b: Builder, op: Op) -> None:
    """Consume the partial sums that the op's backward has left of its parameters' gradients."""
    ours = [name for name in dict.fromkeys(op.params) if name in b.partials]
    fused = tuple(name for name in ours if name in b.fused_update)
    if fused:
        reads = tuple(whole(name) for param in fused for name in b.partials.pop(param))
        b.add_update(op, "update", reads, fused)
    for param in ours:
        if param not in b.fused_update:
            _sum(b, param)
    for param in dict.fromkeys(op.params):
        if param not in b.param_grads or b.uses[param] > 1:
            continue
        if b.ranks is not None and b.sink_of(param) == "update":
            add_whole_gradient(b, param)
        elif b.updates_last:
            b.deferred_updates.append(param)
        else:
            _take_or_batch(b, param)
    flush_batched_updates(b, least=TENSORS)


def _take_or_batch(b: Builder, param: str) -> None:
    """Consume a whole gradient, or have a small parameter wait for others."""
    if b.sink_of(param) == "update" and b.param_nbytes(param) <= WAITS_NBYTES:
        b.batched_updates.append(param)
    else:
        take(b, param)


def flush_all_updates(b: Builder) -> None:
    """Consume all gradients that are whole by the end of backward."""
    for param in b.deferred_updates:
        _take_or_batch(b, param)
        flush_batched_updates(b, least=TENSORS)
    flush_batched_updates(b)
    for name, count in b.uses.items():
        if count > 1 and name in b.param_grads:
            take(b, name)


def take(b: Builder, param: str) -> None:
    """Consume a whole gradient. The terms of tied uses add up from the last use on."""
    pairs = zip(b.param_places[param], b.param_grads[param], strict=True)
    b.param_grads[param] = [grad for _, grad in sorted(pairs, key=lambda pair: -pair[0])]
    op = b.add_op(Op(param, PARAM, (), "", (param,), {}))
    first, *others = (whole(name) for name in b.param_grads[param])
    for other in others:
        b.add_pass(op, "add_grad", (first, other), (first,))
    if b.ranks is not None and b.sink_of(param) == "update":
        add_whole_gradient(b, param)
    elif role := b.sink_of(param):
        b.add_update(op, role, (first,), (param,))


def flush_batched_updates(b: Builder, *, least: int = 1) -> None:
    """Update the small parameters whose gradients are whole, if there are at least `least`.

    They share launches: the 106 of ResNet-50's normalizations take 14.
    """
    while len(b.batched_updates) >= least:
        params, b.batched_updates = tuple(b.batched_updates[:TENSORS]), b.batched_updates[TENSORS:]
        name = params[0] if len(params) == 1 else f"{params[0]} to {params[-1]}"
        op = b.add_op(Op(name, PARAM, (), "", params, {}))
        reads = tuple(whole(name) for param in params for name in b.param_grads[param])
        b.add_update(op, "update", reads, params)


def _sum(b: Builder, param: str) -> None:
    """Sum the splits of one contribution to a gradient that is wanted whole."""
    (partials,) = b.partials.pop(param)
    grad = b.new_param_grad(param)
    op = b.add_op(Op(grad, PARAM, (), "", (param,), {}))
    b.add_pass(op, "sum", (whole(partials),), (whole(grad),))


def update_by(a: Launch, kernel: str, *gradient: Any, **settings: Any) -> None:
    """Launch the optimizer's form of `kernel` on the operands of the parameter's gradient."""
    ((param, *state),) = a.updates
    run = getattr(a.kernels, kernel + a.attrs["optimizer"])
    run(*gradient, param, *state, a.control.optimizer, **a.attrs["switches"], **settings)


def run_fused_update(a: Launch) -> None:
    """Update each parameter by its partial sums."""
    run = getattr(a.kernels, f"{a.attrs['optimizer']}_partials")
    for partials, (param, *state) in zip(a.reads, a.updates, strict=True):
        run(param, partials, *state, a.control.optimizer, **a.attrs["switches"])


def _run_update(a: Launch) -> None:
    params, *states = zip(*a.updates, strict=True)
    run = getattr(a.kernels, f"{a.attrs['optimizer']}_many")
    run(params, a.reads, *states, a.control.optimizer, **a.attrs["switches"])


def _run_accumulate(a: Launch) -> None:
    ((total,),) = a.updates
    a.kernels.add(total, a.reads[0], total)


def _run_sum(a: Launch) -> None:
    a.kernels.sum_partials(a.reads[0], a.writes[0], first=True)


def _nothing(b: Builder, op: Op) -> None:
    """Passes on a parameter's gradient are added when that is complete."""


PARAMETER = Operator(
    PARAM,
    _nothing,
    _nothing,
    {
        "sum": _run_sum,
        "add_grad": launches("add", stores=False),
        "update": _run_update,
        "accumulate": _run_accumulate,
    },
)
