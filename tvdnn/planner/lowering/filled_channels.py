"""Filled channels: what live intervals have been given of buffers that are written in parts."""

from typing import TypeAlias

from ...graph import overlap

Channels: TypeAlias = tuple[int, int]


class FilledChannels:
    """The channel ranges that were written to each live interval, by its number."""

    def __init__(self) -> None:
        self._ranges: dict[int, tuple[Channels, ...]] = {}

    def add(self, number: int, channels: Channels) -> None:
        """Note that an interval was given these channels."""
        self._ranges[number] = (*self._ranges.get(number, ()), channels)

    def copy(self, number: int, other: int) -> None:
        """Note that interval `number` has the channels that another one has."""
        if other in self._ranges:
            self._ranges[number] = self._ranges[other]

    def has_only_others(self, number: int, channels: Channels) -> bool:
        """Whether an interval was given channels, none of them among these."""
        filled = self._ranges.get(number)
        return filled is not None and not any(overlap(channels, each) for each in filled)
