"""The state of one traced call: the modules that run, and why the network is refused."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from .refusals import refusal
from .state.meta_copies import MetaCopies


class TracedCall:
    """The state of one call of `net` while it is traced.

    `meta_copies` are the meta copies of its tensors, `graded` tells whether torch records gradients
    where the network does not say otherwise. `running` are the modules whose forward runs, the
    innermost last. `refused` are the reasons why the network cannot be traced. `proxies` refer to
    all proxies that were made. Calls made while `evaluating` are no part of the network.
    """

    def __init__(self, net: nn.Module, meta_copies: MetaCopies, *, graded: bool) -> None:
        self.net = net
        self.meta_copies = meta_copies
        self.graded = graded
        self.device = _device_of(net)
        self.running: list[nn.Module] = [net]
        self.refused: list[str] = []
        self.proxies: list[weakref.ref[fx.Proxy]] = []
        self.apart: list[weakref.ref[nn.Module]] = []  # Sequentials that forward has made
        self.evaluating = False

    @property
    def module(self) -> nn.Module:
        """The innermost module whose forward runs."""
        return self.running[-1]

    @property
    def title(self) -> str:
        """The name of the network's class."""
        return type(self.net).__name__

    def path_now(self) -> str:
        """The path of the innermost running module below the network; "" for the network."""
        return self.meta_copies.path(self.module)

    def where(self) -> str:
        """The path of the innermost running module; for the network the name of its class."""
        return self.path_now() or self.title

    def refusal(self, reason: str, path: str | None = None) -> str:
        """The reason behind the path of a module, the innermost by default, and before the line."""
        where = self.path_now() if path is None else path
        return refusal(where or self.title, reason)

    def refuse(self, reason: str) -> str:
        """Note why the network cannot be traced, with the line that runs; returns the text."""
        text = self.refusal(reason)
        self.refused.append(text)
        return text

    def evaluated(self, run: Callable[[], Any]) -> Any:
        """The result of `run`, whose calls are no part of the network."""
        evaluating, self.evaluating = self.evaluating, True
        try:
            return run()
        finally:
            self.evaluating = evaluating


def _device_of(net: nn.Module) -> torch.device:
    """The device of a network; torch's default device for one without tensors."""
    tensors = (*net.parameters(), *net.buffers())
    return tensors[0].device if tensors else torch.get_default_device()
