"""Kernel sets: the Triton launchers, or their references under the same names."""

from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace

from ..errors import InputError
from ..kernels import (
    activation,
    arithmetic,
    batch_norm,
    batch_norm_grad,
    broadcast,
    channel_scale,
    concat,
    conv,
    conv_depthwise,
    conv_grad_bias,
    conv_grad_last,
    conv_grad_weight,
    conv_moments,
    conv_pack,
    counts,
    dropout,
    dropout_parts,
    gate,
    group_norm,
    labels,
    layer_norm,
    layout,
    linear,
    linear_update,
    loss,
    loss_elements,
    loss_grad,
    norm,
    optim,
    optim_partials,
    pool_avg,
    pool_max,
    pool_max_grad,
    prelu,
    reduce,
    reduce_axes,
    remap,
    resize,
    sample_sums,
    softmax,
    strided,
    transfer,
    unary,
)
from ..kernels.configurations import Configurations

_MODULES = (
    activation,
    arithmetic,
    batch_norm,
    batch_norm_grad,
    broadcast,
    channel_scale,
    concat,
    conv,
    conv_depthwise,
    conv_grad_bias,
    conv_grad_last,
    conv_grad_weight,
    conv_moments,
    conv_pack,
    counts,
    dropout,
    dropout_parts,
    gate,
    group_norm,
    labels,
    layer_norm,
    layout,
    linear,
    linear_update,
    loss,
    loss_elements,
    loss_grad,
    norm,
    optim,
    optim_partials,
    pool_avg,
    pool_max,
    pool_max_grad,
    prelu,
    reduce,
    reduce_axes,
    remap,
    resize,
    sample_sums,
    softmax,
    strided,
    transfer,
    unary,
)
_SUFFIX = "_reference"


def kernel_set(name: str, configurations: Configurations | None = None) -> SimpleNamespace:
    """The kernels called `name`: "triton", which run as configured, or "torch"."""
    if name not in ("triton", "torch"):
        raise InputError(f"kernels {name!r} are not known; choose triton or torch")
    found: dict[str, Callable[..., None]] = {}
    for module in _MODULES:
        found |= _launchers(module, reference=name == "torch")
    if name == "triton" and configurations is not None:
        found = {stem: configurations.around(launcher) for stem, launcher in found.items()}
    return SimpleNamespace(**found)


def _launchers(module: ModuleType, *, reference: bool) -> dict[str, Callable[..., None]]:
    stems = [name.removesuffix(_SUFFIX) for name in vars(module) if name.endswith(_SUFFIX)]
    return {
        stem: getattr(module, stem + (_SUFFIX if reference else ""))
        for stem in stems
        if isinstance(vars(module).get(stem), FunctionType)  # neither missing nor a part of kernels
    }
