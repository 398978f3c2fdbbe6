"""tvdnn trains networks whose feature maps outgrow the GPU, inside a budget never exceeded."""

from pathlib import Path

__version__ = "0.1.0"

# A bare checkout keeps the kernels in the top-level folder `kernels/`; an installed package has
# them beside this file.
if not (Path(__file__).parent / "kernels").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

from . import models, nn, optim
from .engine import Trainer, Virtualized, virtualize

__all__ = ["Trainer", "Virtualized", "__version__", "models", "nn", "optim", "virtualize"]
