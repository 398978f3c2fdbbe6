"""Optimizers that Trainer plans into the step."""

from dataclasses import dataclass

from .errors import InputError


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent as torch.optim.SGD defines it.

    `lr` is the first learning rate; it may change from step to step. Raises InputError where torch
    would refuse a setting.
    """

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
    def num_states(self) -> int:
        """Tensors of a parameter's shape that the optimizer keeps beside it."""
        return 1 if self.momentum else 0
