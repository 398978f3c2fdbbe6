"""How tvdnn's steps and memory stand beside torch's, network by network and in the mean."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from bench.zoo.rows import (
    AUTO,
    EAGER,
    HALF,
    VIRTUALIZED,
    Row,
    compiled_nbytes,
    fastest_compiled,
    found,
    geometric_mean,
)


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of one network, or their geometric means; None where a row is missing."""

    time_over_compiled: float | None  # auto's step without a budget over torch.compile's
    time_over_eager: float | None
    memory_over_compiled: float | None
    half_over_auto: float | None  # auto's step in half of torch.compile's memory over that without
    virtualized_over_auto: float | None  # virtualize's step over Trainer's


def ratios_of(torchs: Sequence[Row], tvdnns: Sequence[Row], net: str, dtype: str) -> Ratios:
    """The ratios of a network."""
    auto = found(tvdnns, net, AUTO, dtype)
    own_s = _step_s(auto)
    return Ratios(
        _over(own_s, _step_s(fastest_compiled(torchs, net, dtype))),
        _over(own_s, _step_s(found(torchs, net, EAGER, dtype))),
        _over(auto and auto.get("measured_peak_bytes"), compiled_nbytes(torchs, net, dtype)),
        _over(_step_s(found(tvdnns, net, HALF, dtype)), own_s),
        _over(_step_s(found(tvdnns, net, VIRTUALIZED, dtype)), own_s),
    )


def means_of(each: Sequence[Ratios]) -> Ratios:
    """The geometric mean of each ratio over the networks that have it."""
    columns = ([getattr(one, field.name) for one in each] for field in fields(Ratios))
    return Ratios(*(geometric_mean([v for v in column if v is not None]) for column in columns))


def _step_s(row: Row | None) -> float | None:
    return None if row is None else row.get("step_s")


def _over(value: float | None, other: float | None) -> float | None:
    return value / other if value and other else None
