"""Kept sums of gradients, and the updates of parameters by them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from ..graph import Network
from ..kernels.optim.pieces import heads_of
from ..ops.expand import Mode
from ..runtime.kernel_set import kernel_set
from .core import Core, Updates
from .optimizer_state import Spec
from .optimizers import Planned, Updated


class GradientSums:
    """The sums of gradients that steps keep for a later update.

    Accumulating steps keep a sum for each trained parameter. Other steps keep one only where
    several gradients reach a parameter through computed ones.
    """

    def __init__(self, core: Core, spec: Spec, optimizer: Planned) -> None:
        self._core, self._spec, self._optimizer = core, spec, optimizer
        self._accumulated: dict[str, torch.Tensor] = {}
        self._made: dict[tuple[str, torch.Size, tuple[int, ...]], torch.Tensor] = {}

    def start(self) -> None:
        """Make the sums to accumulate in, and forget steps that were planned without them."""
        if self._accumulated:
            return
        self._core.drop()
        trained = self._core.module.trained().items()
        self._accumulated = {name: self._sum_like(name, param) for name, param in trained}

    def forget(self) -> None:
        """Stop accumulating, as for a network that has changed."""
        self._accumulated = {}

    def nbytes_beside(self, network: Network) -> int:
        """Bytes of the sums that a step of the network without accumulation does not use."""
        others = self._accumulated.keys() - network.completed_last
        return sum(self._accumulated[name].untyped_storage().nbytes() for name in others)

    @contextmanager
    def summing(
        self,
        network: Network,
        mode: Mode,
        updated: Updated,
        losing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Iterator[None]:
        """A context that sums gradients: it makes computed parameters first, and updates last.

        Updates run inside `losing`.
        """
        sums = self._sums_of(network, mode)
        tensors = self._core.module.tensors if network.formulas else {}
        self._core.computed.fill(network, tensors)
        for each in sums.values():
            each.zero_()
        yield
        group = self._core.requested.group
        if group is not None:
            for each in sums.values():
                group.sum(each)
        self._core.computed.hand_on(network, tensors, sums, updated.computed)
        names = [name for name in updated.names if name in sums]
        with losing():
            self._update(names, [sums[name] for name in names])

    def updates(self, mode: Mode, network: Network) -> Updates:
        """The tensors that passes change by gradients: parameters and state, or kept sums."""
        sums = {name: (each,) for name, each in self._sums_of(network, mode).items()}
        if mode is Mode.ACCUMULATE:
            return sums
        return {**{name: self.tensors_of(name) for name in self._core.module.trained()}, **sums}

    def tensors_of(self, name: str) -> tuple[torch.Tensor | None, ...]:
        """The tensors that an update of a parameter changes: itself, and its optimizer state."""
        param = self._core.module.params[name]
        return param.detach(), *self._optimizer.planned_state.tensors_of(param)

    def _sums_of(self, network: Network, mode: Mode) -> dict[str, torch.Tensor]:
        """The kept sums of a step by parameter: of all, or of those completed last.

        They are in one order in all processes, which sum them over one another.
        """
        found = {**self._core.module.params, **self._core.computed.of(network)}
        sums = {
            name: self._sum_like(name, found[name])
            for name in sorted(network.completed_last if network.formulas else ())
            if network.params[name].requires_grad
        }
        return self._accumulated | sums if mode is Mode.ACCUMULATE else sums

    def _sum_like(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        key = name, tensor.shape, tensor.stride()
        if key not in self._made:
            self._made[key] = self._zeros_like(tensor.detach())
        return self._made[key]

    def _zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        shards = self._optimizer.planned_state.shards
        return torch.zeros_like(tensor) if shards is None else shards.room_like(tensor)

    def _update(self, names: Sequence[str], grads: Sequence[torch.Tensor]) -> None:
        """Update parameters by the kept sums; small ones share launches."""
        if not names:
            return
        update = getattr(kernel_set(self._core.kernels), f"{self._spec.kind}_many")
        params, *states = zip(*map(self.tensors_of, names), strict=True)
        control, shards = self._core.control.optimizer, self._optimizer.planned_state.shards
        if shards is None:
            update(params, list(grads), *states, control, **self._spec.switches)
            return
        own, sums = ([shards.of(each) for each in kind] for kind in (params, grads))
        kept = (heads_of(pieces, own) for pieces in states)
        update(own, sums, *kept, control, **self._spec.switches)
        for param, room in zip(params, grads, strict=True):
            shards.spread(param, room)
