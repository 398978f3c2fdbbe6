"""The states of a network that an engine has planned for, by number."""

import warnings
from collections.abc import Hashable, Iterator
from typing import Final

import torch
from torch import nn

from ..trace.guards.module_state import TraceState

MOST_STATES: Final = 8  # states whose schedules are kept
MANY_CHANGES: Final = 8  # consecutive calls with a new state after which a warning is given
LOOKS_OF_A_CALL: Final = 4  # most looks at the state in one call


class NetworkStates:
    """Numbers the states of `net` on which its trace depends; `current` is the last one seen."""

    def __init__(self, net: nn.Module) -> None:
        self._trace_state = TraceState(net)
        self.current = self._trace_state.now()
        self._keys: dict[int, set[Hashable]] = {self.current: set()}  # by state, the latest last
        self._newest = -1
        self._looks = 0  # since the last change
        self._changes = 0  # to new states, in consecutive calls

    def look(self, *, moved: bool) -> int:
        """The number of the present state, found anew where tensors of the network have moved."""
        state = self._trace_state.now()
        if moved:
            state = self._trace_state.refresh()
        self._looks += 1
        return state

    def change(self, state: int) -> None:
        """Make a state the current one; warn where many consecutive calls found a new one."""
        close = self._looks <= LOOKS_OF_A_CALL
        self._changes = (self._changes + 1 if close else 1) if state > self._newest else 0
        self._newest, self._looks = max(state, self._newest), 0
        self.current = state
        if self._changes == MANY_CHANGES:
            warnings.warn(
                f"the network was planned anew in {MANY_CHANGES} calls, one behind the other: each"
                " found another setting, or another value outside the network that its forward"
                " reads; keep what changes so often in a buffer",
                stacklevel=2,
            )

    def grad_mode(self, graded: bool) -> bool:
        """Whether a step is traced with gradients: a forward that has none may ask for the mode."""
        return graded or (self._trace_state.asks_grad_mode and torch.is_grad_enabled())

    def use(self, key: Hashable) -> Iterator[Hashable]:
        """Note that a runner of the current state is used; yield keys of states to forget."""
        self._keys[self.current] = self._keys.pop(self.current, set()) | {key}
        if len(self._keys) > MOST_STATES:
            yield from self._keys.pop(next(iter(self._keys)))

    def keys(self) -> set[Hashable]:
        """The keys of the runners that the current state has used."""
        return self._keys.get(self.current, set())
