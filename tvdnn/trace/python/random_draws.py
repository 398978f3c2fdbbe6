"""Random numbers that a forward draws on the host: once in a trace, not in each step."""

import inspect
import random
import sys
from typing import Any

import torch

from ..source_lines import location_text


class HostDraws:
    """Tells which random generators of the host have drawn since `found` was called last."""

    def __init__(self) -> None:
        self._before = _generators()

    def found(self, module: torch.nn.Module) -> list[str]:
        """Refusals for generators that have drawn, with the line of the forward of `module`."""
        before, self._before = self._before, _generators()
        drawn = [name for name, state in self._before.items() if before.get(name, state) != state]
        return [
            f"forward draws a number from {name}, which would be the same in every step"
            f"{_line_of_forward(module)}"
            for name in drawn
        ]


def _generators() -> dict[str, Any]:
    with torch._C.DisableTorchFunction():  # this is no call of the network
        drawn = torch.get_rng_state().numpy().tobytes()
    states = {"random": random.getstate(), "torch": drawn}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["numpy.random"] = (kind, keys.tobytes(), *rest)
    return states


def _line_of_forward(module: torch.nn.Module) -> str:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return "" if code is None else location_text((code.co_filename, code.co_firstlineno))
