"""The parameters and buffers of a network that an engine runs, and copies of them."""

from collections.abc import Mapping

import torch
from torch import nn

from ..errors import InputError
from ..graph.state import StateChanges
from .engine_request import CPU
from .state_changes import Copies, change_state


class ModuleTensors:
    """Parameters and buffers of `net` by name, as they were when `update` was called last.

    All parameters lie on `device`; it is the given one for a network without parameters.
    """

    def __init__(self, net: nn.Module, device: torch.device) -> None:
        self._net = net
        self.params, self.buffers = _tensors_of(net)
        self.device = one_device(self.params, device)
        self.copies = copies_of(self.params)  # float32 copies of parameters of another type
        self._addresses = self._addresses_now()
        self._held: dict[str, torch.Tensor] = {}  # copies of buffers, which passes read
        self._before: dict[str, torch.Tensor] = {}  # of what forwards change, as it was before

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name."""
        return {**self.buffers, **self.params}

    def trained(self) -> dict[str, torch.Tensor]:
        """The parameters with requires_grad by name."""
        return {name: param for name, param in self.params.items() if param.requires_grad}

    def have_moved(self) -> bool:
        """Whether a parameter or buffer has another address than at the last update."""
        return self._addresses != self._addresses_now()

    def are_replaced(self) -> bool:
        """Whether the network has other parameters or buffers than at the last update."""
        params, buffers = _tensors_of(self._net)
        return not (
            _are_same_tensors(params, self.params) and _are_same_tensors(buffers, self.buffers)
        )

    def update(self) -> None:
        """Take over the parameters and buffers that the network has now."""
        self.params, self.buffers = _tensors_of(self._net)
        self.copies = copies_of(self.params)
        self._addresses = self._addresses_now()

    def check_device(self) -> None:
        """Raise InputError where the network has moved to another device."""
        device = one_device(_tensors_of(self._net)[0], self.device)
        if device != self.device:
            raise InputError(
                f"the parameters lie on {device} and lay on {self.device} when this engine was"
                " made; move them back or make a new one"
            )

    def copy_params(self) -> None:
        """Bring the float32 copies of parameters of another type up to date."""
        if self.copies:
            given = [self.params[name].detach() for name in self.copies]
            torch._foreach_copy_(list(self.copies.values()), given)

    def forget_copies(self) -> None:
        """Drop the copies of buffers, which other schedules make anew."""
        self._held.clear()
        self._before.clear()

    def held_copies(self, changes: StateChanges) -> dict[str, torch.Tensor]:
        """The copies of buffers that a schedule's passes read; schedules share them."""
        for copy, name in changes.held.items():
            if copy not in self._held:
                self._held[copy] = torch.empty_like(self.buffers[name])
        return {copy: self._held[copy] for copy in changes.held}

    def change_state(self, changes: StateChanges) -> None:
        """Change parameters and buffers as one forward does by itself; call ahead of each."""
        if not changes.calls:
            return
        change_state(changes, self.params | self.buffers | self._held, self.device)

    def state_before(self, changes: StateChanges) -> Copies:
        """Copies of what `change_state` writes, for a step that fails; until the next such call."""
        found: Copies = []
        for name in changes.written:
            tensor = (self.params if name in self.params else self.buffers)[name].detach()
            if name not in self._before:
                with torch.inference_mode(False):  # later calls may train
                    self._before[name] = torch.empty_like(tensor)
            found.append((tensor, self._before[name].copy_(tensor)))
        return found

    def _addresses_now(self) -> list[int]:
        address = torch.Tensor.data_ptr
        return [*map(address, self.params.values()), *map(address, self.buffers.values())]


def _tensors_of(net: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    return dict(net.named_parameters()), dict(net.named_buffers())


def copies_of(params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Empty float32 tensors like the parameters of another type."""
    return {
        name: torch.empty_like(param, dtype=torch.float32, requires_grad=False)
        for name, param in params.items()
        if param.dtype != torch.float32
    }


def _are_same_tensors(now: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> bool:
    return now.keys() == before.keys() and all(now[name] is before[name] for name in now)


def one_device(params: Mapping[str, torch.Tensor], default: torch.device = CPU) -> torch.device:
    """The device of all parameters; raises InputError where they lie on several."""
    devices = {param.device for param in params.values()}
    if len(devices) > 1:
        raise InputError(
            f"the parameters lie on {sorted(map(str, devices))}; move the network to one device"
        )
    return next(iter(devices), default)
