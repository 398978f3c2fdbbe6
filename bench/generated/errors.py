"""How far results lie from float64's, and the rounding that their terms bring."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from bench.generated import rule
from bench.generated.calls import CallMode
from bench.generated.normalizations import written_out
from bench.generated.runs import Seen


def rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt()) if values.numel() else 0.0


def differences(found: Seen, exact: Seen) -> dict[str, float]:
    """The RMS of each tensor's error."""
    return {
        name: rms(value - exact[name])
        for name, value in found.items()
        if value is not None and exact[name] is not None
    }


def mismatches(found: Seen, exact: Seen) -> list[str]:
    """Differences other than rounding: names, None or a tensor, shapes, finiteness."""
    if found.keys() != exact.keys():
        return [f"{name} is there on one side only" for name in found.keys() ^ exact.keys()]
    reasons = []
    for name, value in found.items():
        other = exact[name]
        if (value is None) != (other is None):
            reasons.append(f"{name} is {'None' if value is None else 'a tensor'}")
        elif value is not None and other is not None:
            if value.shape != other.shape:
                reasons.append(f"{name} is of shape {tuple(value.shape)}, not {tuple(other.shape)}")
            elif not value.isfinite().all():
                reasons.append(f"{name} is not finite")
    return reasons


def is_finite(seen: Seen) -> bool:
    return all(value is None or bool(value.isfinite().all()) for value in seen.values())


def beyond(
    ours: Mapping[str, float], eager: Mapping[str, float], scales: Mapping[str, float], dtype: str
) -> list[str]:
    """The tensors whose error is above the rule's bound."""
    room = rule.UNITS_OF_ROUNDING * rule.EPS[dtype]
    return [
        name
        for name, error in ours.items()
        if error > rule.TIMES_EAGER * eager[name] + room * scales[name]
    ]


def largest(found: Mapping[str, float], others: Iterable[Seen], exact: Seen) -> dict[str, float]:
    """The largest error of each tensor, over the errors found and the errors of other runs."""
    errors = dict(found)
    for seen in others:
        for name, error in differences(seen, exact).items():
            errors[name] = max(errors[name], error)
    return errors


class Rounded(CallMode):
    """Rounds results of torch's functions, and their gradients, at random to rule.NOISE.

    In a normalization it also rounds the statistics and every value computed from them.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def called(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        out = func(*args, **kwargs)  # moves the running statistics of a normalization, too
        with self:
            normalized = written_out(func, args, kwargs)
        if normalized is not None:
            return normalized
        if not isinstance(out, Tensor) or is_lazy(out) or out.numel() == 0:
            return out
        if out.dtype != torch.float64:
            return out
        if out.is_leaf or _is_view(out, args):
            return out
        out.register_hook(self._noised)
        return out + (self._noised(out.detach()) - out.detach())

    def _noised(self, values: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            signs = torch.randint(0, 2, values.shape, generator=self.generator) * 2.0 - 1.0
            return values * (1.0 + rule.NOISE * signs.to(values))


def _is_view(out: Tensor, args: Sequence[Any]) -> bool:
    return any(isinstance(x, Tensor) and x.data_ptr() == out.data_ptr() for x in args)


def terms(run: Callable[[], Seen], exact: Seen) -> dict[str, float]:
    """The RMS of the terms of each tensor, by runs with noise in float64."""
    found: dict[str, float] = {}
    for seed in range(rule.NOISE_RUNS):
        with Rounded(seed):
            noised = run()
        for name, error in differences(noised, exact).items():
            found[name] = max(found.get(name, 0.0), error / rule.NOISE)
    return found


def scales(exact: Seen, of_terms: Mapping[str, float]) -> dict[str, float]:
    """The scale of each tensor's error: its RMS, or the RMS of its terms where these cancel."""
    found = {name: 0.0 if value is None else rms(value) for name, value in exact.items()}
    return {name: _scale(scale, of_terms.get(name, 0.0)) for name, scale in found.items()}


def _scale(scale: float, term: float) -> float:
    return term if scale < rule.CANCELLED * term else scale
