"""The engine: Trainer, with loss and update in the plan, and virtualize, under the user's loop."""

from .build import training_graph
from .trainer import Trainer
from .virtualize import virtualize
from .virtualized_module import Virtualized

__all__ = ["Trainer", "Virtualized", "training_graph", "virtualize"]
