"""Numbers that a forward draws outside its maps: drawn once while tracing, not in each step."""

import inspect
import random
import sys
from typing import Any

import torch

from ..diagnostics import shown


class Draws:
    """Tells which generators of numbers on the host have drawn since it was last asked."""

    def __init__(self) -> None:
        self._before = _generators()

    def found(self, module: torch.nn.Module) -> list[str]:
        """Refusals for the generators that have drawn; they name the line of `module`'s forward."""
        before, self._before = self._before, _generators()
        drawn = [name for name, state in self._before.items() if before.get(name, state) != state]
        return [
            f"forward draws a number from {name}, which would be the same in every step"
            f"{_line_of_forward(module)}"
            for name in drawn
        ]


def _generators() -> dict[str, Any]:
    with torch._C.DisableTorchFunction():  # which is no call of the network's
        drawn = torch.get_rng_state().numpy().tobytes()
    states = {"random": random.getstate(), "torch": drawn}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["numpy.random"] = (kind, keys.tobytes(), *rest)
    return states


def _line_of_forward(module: torch.nn.Module) -> str:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return "" if code is None else shown((code.co_filename, code.co_firstlineno))
