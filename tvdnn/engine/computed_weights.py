"""Computed parameters: torch makes them before a step, and takes their gradients after it.

A network's forward computes them of parameters, buffers and constants alone. Standardized weights
are an example. Passes read them at fixed addresses, as they read parameters.
"""

from collections.abc import Container, Hashable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from ..graph import Network, Param
from ..ops.expand import Mode
from ..ops.torch_peak import peak_nbytes
from ..trace.state.formulas import gradients
from ..trace.state.meta_answers import torch_name_of


class ComputedParameters:
    """The tensors of computed parameters; schedules of all shapes share them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._nbytes: dict[Hashable, int] = {}

    def nbytes(self, network: Network, mode: Mode, tensors: Mapping[str, Tensor]) -> int:
        """The most bytes that torch allocates at once to compute them; measured once by form.

        On a GPU the measurement resets torch's count of allocated bytes.
        """
        names = (tuple(map(torch_name_of, f.functions)) for f in network.formulas.values())
        key = mode, *((name, network.params[name].shape) for name in network.formulas), *names
        if key not in self._nbytes:
            self._nbytes[key] = computed_nbytes(network, mode, tensors)
        return self._nbytes[key]

    def of(self, network: Network) -> dict[str, Tensor]:
        """The computed parameters of a network, by name."""
        return {name: self._tensor(network.params[name]) for name in network.formulas}

    def values(
        self, network: Network, tensors: Mapping[str, Tensor], trained: Container[str]
    ) -> dict[str, Tensor]:
        """The results of the network's formulas; passes read copies of them.

        Those that are not `trained` are detached: a user's function of autograd's takes a gradient
        that is missing for zeros, and the parameters that it reads would be trained by these. It
        still does so behind a backward from a part of the outputs, where another part needs it.
        """
        values = {}
        for name, formula in network.formulas.items():
            value = formula(tensors, self._device)
            values[name] = value if formula.reaches and name in trained else value.detach()
            self._tensor(network.params[name]).copy_(value.detach())
        return values

    def fill(self, network: Network, tensors: Mapping[str, Tensor]) -> None:
        """Compute the network's formulas one after the other, where passes read the results."""
        with torch.no_grad():
            for name, formula in network.formulas.items():
                value = formula(tensors, self._device)
                self._tensor(network.params[name]).copy_(value)

    def hand_on(
        self,
        network: Network,
        tensors: Mapping[str, Tensor],
        sums: Mapping[str, Tensor],
        names: Iterable[str],
    ) -> None:
        """Add the gradients that come by the computed parameters `names` to those of parameters."""
        for name in names:
            found = gradients(network.formulas[name], tensors, self._device, sums[name])
            for reached, gradient in found.items():
                sums[reached].add_(gradient)

    def _tensor(self, param: Param) -> Tensor:
        key = param.name, param.shape
        if key not in self._tensors:
            self._tensors[key] = torch.zeros(param.shape, device=self._device)
        return self._tensors[key]


def trained_by(network: Network) -> frozenset[str]:
    """The names of parameters whose gradients come by computed parameters."""
    formulas = network.formulas.values()
    return frozenset(name for formula in formulas for name in formula.reaches)


def computed_nbytes(network: Network, mode: Mode, tensors: Mapping[str, Tensor]) -> int:
    """The most bytes that torch allocates at once for the computed parameters of a step.

    A trainer makes one after the other, forward and backward. Torch's autograd makes all of them at
    once. The bytes are measured on a GPU, and elsewhere counted on tensors without data.
    """
    if not network.formulas:
        return 0
    found = {name: tensors.get(name) for name in network.params}
    on_gpu = all(each is not None and each.is_cuda for each in found.values())
    run = _run_together if mode is Mode.AUTOGRAD else _run_in_turn
    if not on_gpu:
        found = {name: _meta(param) for name, param in network.params.items()}
    given = {name: each.detach() for name, each in found.items() if each is not None}
    device = next(iter(given.values())).device
    with torch.inference_mode(False):
        return peak_nbytes(partial(run, network, given, device, mode), device)


def _run_in_turn(
    network: Network, tensors: Mapping[str, Tensor], device: torch.device, mode: Mode
) -> None:
    for formula in network.formulas.values():
        with torch.no_grad():
            value = formula(tensors, device)
        if mode is not Mode.INFER and formula.reaches:
            gradients(formula, tensors, device, value)


def _run_together(
    network: Network, tensors: Mapping[str, Tensor], device: torch.device, mode: Mode
) -> None:
    reached = trained_by(network)
    leaves = {name: each.requires_grad_(name in reached) for name, each in tensors.items()}
    with torch.enable_grad():
        made = [(each, each(leaves, device)) for each in network.formulas.values()]
        trained = [value for formula, value in made if formula.reaches]
        if trained:
            torch.autograd.grad(trained, [leaves[name] for name in reached], trained)


def _meta(param: Param) -> Tensor:
    dtype: torch.dtype = getattr(torch, param.dtype)
    return torch.empty(param.shape, dtype=dtype, device="meta")
