"""tvdnn trains networks whose feature maps outgrow the GPU, inside a budget never exceeded."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import models, nn, optim
    from .engine.trainer import Trainer
    from .engine.virtualize import virtualize
    from .engine.virtualized_module import Virtualized

__version__ = "0.1.0"
__all__ = ["Trainer", "Virtualized", "__version__", "models", "nn", "optim", "virtualize"]

# A bare checkout keeps the kernels in the top-level folder `kernels/`; an installed package has
# them beside this file.
if not (Path(__file__).parent / "kernels").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

# The package itself imports no torch, which takes seconds: planning needs none.
_FROM_ENGINE = ("Trainer", "Virtualized", "virtualize")
_MODULES = ("engine", "models", "nn", "optim")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import what is asked for the first time."""
        if name in _FROM_ENGINE:
            found: Any = getattr(import_module(f"{__name__}.engine"), name)
        elif name in _MODULES:
            found = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
