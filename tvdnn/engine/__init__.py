"""The engine: Trainer, with loss and update inside the plan, and virtualize, under the user's own loop."""

from .graphs import training_graph
from .trainer import Trainer

__all__ = ["Trainer", "training_graph"]
