"""Launches of kernels on operands of their own, and torch's counterparts of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from sys import modules
from typing import Any, Final, NamedTuple

from torch import Tensor

from tvdnn.kernels.language.cost import Cost, cost_of, moved

EXACT_SAMPLES: Final = 2  # of a batch, whose results are computed in float64 too
Settings = Mapping[str, Any]


class Call(NamedTuple):
    """A call of a launcher."""

    launcher: Callable[..., None]
    operands: tuple[Any, ...]
    settings: Settings

    def run(self) -> None:
        self.launcher(*self.operands, **self.settings)

    def run_reference(self) -> None:
        module = modules[self.launcher.__module__]
        reference = getattr(module, self.launcher.__name__ + "_reference")
        reference(*self.operands, **self.settings)

    @property
    def cost(self) -> Cost:
        return cost_of(self.launcher, *self.operands, **self.settings)


@dataclass(frozen=True, slots=True)
class Peer:
    """torch's counterpart of a launch. Both results have one layout."""

    result: Callable[[], Tensor]  # of our launch
    run: Callable[[], Tensor]  # torch's result
    exact: Callable[[], Tensor]  # a part of the result, in float64
    part: Callable[[Tensor], Tensor] = lambda result: result  # cuts that part out of a result
    same_numbers: bool = True  # False where both sides draw random numbers of their own


@dataclass(frozen=True, slots=True)
class Launch:
    """Calls of launchers that make one result, on operands of their own."""

    calls: tuple[Call, ...]
    peer: Peer | None = None
    before: tuple[Call, ...] = ()  # make operands, and are no part of the work
    scratch: tuple[Tensor, ...] = ()  # one call leaves them to another; their bytes cost nothing
    streams: bool = False  # the calls move more bytes than the L2 cache holds, each once

    @property
    def costs(self) -> list[Cost]:
        """The cost of each call, without the bytes of scratch; of calls that stream, one sum."""
        costs = [self._cost(call) for call in self.calls]
        if not self.streams:
            return costs
        return [Cost(*(sum(parts) for parts in zip(*costs, strict=True)))]

    def _cost(self, call: Call) -> Cost:
        free = [each for each in self.scratch if any(each is given for given in call.operands)]
        return Cost(call.cost.flops, call.cost.nbytes - moved(free))

    def run(self) -> None:
        for call in self.calls:
            call.run()

    def prepare(self) -> None:
        for call in self.before:
            call.run()


def launching(
    launcher: Callable[..., None], *operands: Any, peer: Peer | None = None, **settings: Any
) -> Launch:
    """A launch of one call."""
    return Launch((Call(launcher, operands, settings),), peer)


def per_sample(
    result: Callable[[], Tensor], compute: Callable[..., Tensor], *inputs: Tensor
) -> Peer:
    """torch's operation, and in float64 the same on the first samples."""
    few = slice(EXACT_SAMPLES)
    return Peer(
        result,
        lambda: compute(*inputs),
        lambda: compute(*(tensor[few].double() for tensor in inputs)),
        first_samples,
    )


def first_samples(result: Tensor) -> Tensor:
    return result[:EXACT_SAMPLES]


def nchw(nhwc: Tensor) -> Tensor:
    return nhwc.permute(0, 3, 1, 2)
