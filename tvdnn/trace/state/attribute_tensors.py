"""Attribute tensors: plain tensor attributes of modules, which a step reads as they then are."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class AttributeTensor:
    """A tensor that a module holds as an attribute, and which is no parameter or buffer."""

    module: nn.Module
    attribute: str
    name: str  # the module's path and the attribute

    def now(self) -> Tensor:
        """The tensor that the module holds now."""
        tensor: Tensor = self.module.__dict__[self.attribute]
        return tensor.detach()
