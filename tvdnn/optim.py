"""Optimizers that Trainer plans into the step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from .errors import InputError


class Optimizer(Protocol):
    """What the engine asks of an optimizer.

    `kind` names its kernels, and `switches` are their static arguments. `states` are torch's names
    of the tensors that it keeps for each parameter, in the parameter's shape.
    """

    kind: ClassVar[str]

    @property
    def switches(self) -> Mapping[str, bool]: ...
    @property
    def states(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent as torch.optim.SGD defines it.

    `lr` is the first learning rate. Later rates are set on `trainer.optimizer`. Raises InputError
    for a setting that torch would refuse.
    """

    kind: ClassVar[str] = "sgd"

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            if getattr(self, name) < 0.0:
                raise InputError(f"SGD {name} is {getattr(self, name)}; it must be at least 0")
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InputError("SGD with nesterov needs a momentum above 0 and no dampening")

    @property
    def switches(self) -> Mapping[str, bool]:
        """Settings that are fixed when the kernels are compiled."""
        return {"nesterov": self.nesterov, "maximize": self.maximize}

    @property
    def states(self) -> tuple[str, ...]:
        """The tensors kept for each parameter, in its shape, by torch's names."""
        return ("momentum_buffer",) if self.momentum else ()


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay as torch.optim.AdamW defines it.

    `lr` is the first learning rate. Later rates are set on `trainer.optimizer`. Raises InputError
    for a setting that torch would refuse.
    """

    kind: ClassVar[str] = "adamw"

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    maximize: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay"):
            if getattr(self, name) < 0.0:
                raise InputError(f"AdamW {name} is {getattr(self, name)}; it must be at least 0")
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise InputError(f"AdamW betas are {self.betas}; each must be at least 0 and below 1")

    @property
    def switches(self) -> Mapping[str, bool]:
        """Settings that are fixed when the kernels are compiled."""
        return {"maximize": self.maximize}

    @property
    def states(self) -> tuple[str, ...]:
        """The tensors kept for each parameter, in its shape, by torch's names."""
        return ("exp_avg", "exp_avg_sq")
