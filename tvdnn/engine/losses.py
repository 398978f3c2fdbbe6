"""A user's losses, as data for the planner and tensors for the kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..graph import DTYPE_NBYTES, Network, Param
from ..kernels.loss.cross_entropy import MOST_CLASSES, with_sum
from ..ops.loss import TARGET, OutputLoss
from ..trace.modules import LAYER_PACKAGES
from ..trace.state.functionalize import version_of

LossLike: TypeAlias = str | nn.Module
REDUCTIONS: Final = ("mean", "sum")
SETTINGS: Final = ("reduction", "ignore_index", "label_smoothing")  # of loss modules
WEIGHTS: Final = ("weight", "pos_weight")
NAMES: Final[Mapping[str, type[nn.Module]]] = {
    "cross_entropy": nn.CrossEntropyLoss,
    "bce_with_logits": nn.BCEWithLogitsLoss,
    "mse": nn.MSELoss,
}


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of a network's outputs, in order, and the weights that they read, by name."""

    each: tuple[OutputLoss, ...]
    tensors: Mapping[str, Tensor]


def losses_of(
    loss: LossLike | Sequence[LossLike], weights: Sequence[float] | None, device: torch.device
) -> Losses:
    """The losses of these names, or of modules of torch.nn or tvdnn.nn.

    `weights` are the factors of the outputs' losses, all of `loss` if that is one. Raises
    InputError for unknown losses and for settings that tvdnn does not have.
    """
    given = [loss] if isinstance(loss, (str, nn.Module)) else list(loss)
    shares = [1.0] * len(given) if weights is None else [float(weight) for weight in weights]
    given = given * len(shares) if isinstance(loss, (str, nn.Module)) else given
    if not given or len(shares) != len(given):
        raise InputError(
            f"there are {len(given)} losses and {len(shares)} loss_weights; give one an output"
        )
    tensors: dict[str, Tensor] = {}
    each = [
        replace(_loss(module, number, tensors, device), share=share)
        for number, (module, share) in enumerate(zip(given, shares, strict=True))
    ]
    if len({known.target_dtype for known in each}) > 1:
        raise InputError("the losses take different targets; all outputs are given one")
    return Losses(tuple(each), tensors)


class GivenLosses:
    """The loss modules of a user, whose settings are part of plans and kernels.

    `check` raises InputError where a setting, or the values of a weight, are not what they were
    when this was made. A write to a weight by `.data` is not seen.
    """

    def __init__(self, loss: LossLike | Sequence[LossLike]) -> None:
        given = [loss] if isinstance(loss, (str, nn.Module)) else loss
        modules = [each for each in given if isinstance(each, nn.Module)]
        self._settings = [
            (module, name, getattr(module, name))
            for module in modules
            for name in SETTINGS
            if hasattr(module, name)
        ]
        self._weights = [
            _Weight(module, name) for module in modules for name in WEIGHTS if hasattr(module, name)
        ]

    def check(self) -> None:
        for module, name, before in self._settings:
            now = getattr(module, name)
            if now != before:
                raise _changed(module, f"{name} is {now!r}, and was {before!r}")
        for weight in self._weights:
            weight.check()


class _Weight:
    """A weight of a loss: its tensor at the last check, and its values at first."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module, self._name = module, name
        weight = self._now()
        self._values = None if weight is None else weight.detach().clone()
        self._seen = weight
        self._version = version_of(weight)

    def check(self) -> None:
        """Compare values, which may wait for a device, only where the tensor may have changed."""
        weight = self._now()
        if weight is self._seen and version_of(weight) == self._version:
            return
        if weight is None or self._values is None or not _are_equal(weight, self._values):
            raise _changed(self._module, f"{self._name} has other values than it had")
        self._seen, self._version = weight, version_of(weight)

    def _now(self) -> Tensor | None:
        weight: Tensor | None = getattr(self._module, self._name)
        return weight


def _are_equal(weight: Tensor, values: Tensor) -> bool:
    return weight.shape == values.shape and torch.equal(weight.detach().to(values), values)


def _changed(module: nn.Module, what: str) -> InputError:
    return InputError(
        f"{type(module).__name__}.{what} when this trainer was made; set it back or make a new"
        " trainer"
    )


def check_losses(network: Network, losses: Sequence[OutputLoss]) -> None:
    """Raise InputError unless the network has an output for each loss, of the same targets."""
    values = [network.values[name] for name in network.outputs]
    outputs = [value.shape for value in values]
    if len(outputs) != len(losses):
        raise InputError(
            f"the network has {len(outputs)} outputs, and losses for {len(losses)}; give a list of"
            " losses or loss_weights, one for each output"
        )
    targets = {loss.target_shape(out) for loss, out in zip(losses, outputs, strict=True)}
    if len(targets) > 1:
        raise InputError(f"the outputs want targets of different shapes: {sorted(targets)}")
    for loss, value in zip(losses, values, strict=True):
        if loss.kind == "cross_entropy" and len(value.torch_axes) == 1:
            raise InputError(f"cross_entropy takes [N, C] or maps; {value.name} is [N]")
        _check_weights(loss, value.shape)


def target_nbytes(network: Network, losses: Sequence[OutputLoss]) -> int:
    """Bytes of the targets of the network's outputs."""
    shape = losses[0].target_shape(network.values[network.outputs[0]].shape)
    return prod(shape) * DTYPE_NBYTES[losses[0].target_dtype]


def target_shape(network: Network) -> tuple[int, ...]:
    """The shape, as torch has it, of the targets of a network with losses."""
    target = network.values[TARGET]
    if any(op.kind == "cross_entropy" for op in network.ops):
        return target.shape
    return tuple(target.shape[axis] for axis in target.torch_axes)


def _check_weights(loss: OutputLoss, shape: tuple[int, ...]) -> None:
    """Check that weights have a value for each class or channel, or one for all."""
    channels, of_classes = shape[-1], loss.kind == "cross_entropy"
    for param in loss.params:
        if param is None or (prod(param.shape) == 1 and not of_classes):
            continue
        wanted = (channels + 1,) if of_classes else (channels, *(1,) * (len(shape) - 2))
        if param.shape != wanted:
            raise InputError(
                f"{param.name} of the loss does not fit an output of {channels} channels; give"
                f" {channels} values" + ("" if of_classes else f" of shape {list(wanted)}, or one")
            )
    if of_classes and len(shape) > 2 and channels > MOST_CLASSES:
        raise InputError(
            f"the output has {channels} classes a pixel; cross_entropy takes up to {MOST_CLASSES}"
        )


def _loss(
    given: LossLike, number: int, tensors: dict[str, Tensor], device: torch.device
) -> OutputLoss:
    """The loss of output `number`, whose weights join `tensors`."""
    kind, module = _known(given)
    if module.reduction not in REDUCTIONS:
        known = " or ".join(REDUCTIONS)
        raise InputError(f"reduction {module.reduction!r} is not known; choose {known}")
    mean, attrs = module.reduction == "mean", {}
    weights: list[Tensor | None] = [None, None]
    if isinstance(module, nn.CrossEntropyLoss):
        attrs = {"ignore_index": module.ignore_index, "smoothing": module.label_smoothing}
        weights = [None if module.weight is None else with_sum(module.weight)]
    elif isinstance(module, nn.BCEWithLogitsLoss):
        weights = [module.weight, module.pos_weight]
    names = [f"loss{number or ''}.{name}" for name in ("weight", "pos_weight")]
    params: list[Param | None] = []
    for name, weight in zip(names, weights, strict=False):
        params.append(None if weight is None else _constant(name, weight))
        if weight is not None:
            tensors[name] = weight.detach().to(device, torch.float32).flatten().clone()
    return OutputLoss(kind, attrs, mean, params=tuple(params))


def _constant(name: str, weight: Tensor) -> Param:
    nbytes = weight.numel() * DTYPE_NBYTES["float32"]
    return Param(name, tuple(weight.shape), nbytes, requires_grad=False)


def _known(given: LossLike) -> tuple[str, Any]:
    """The name of a loss, and a module with its settings. Raises InputError for others."""
    if isinstance(given, str) and given in NAMES:
        return given, NAMES[given]()
    if isinstance(given, nn.Module) and type(given).__module__.startswith(LAYER_PACKAGES):
        for name, kind in NAMES.items():
            if isinstance(given, kind):
                return name, given
    called = repr(given) if isinstance(given, str) else type(given).__name__
    raise InputError(
        f"loss {called} is not known; choose {', '.join(NAMES)}, such a module of torch.nn, or"
        " virtualize with your own loss"
    )
